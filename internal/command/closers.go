package command

import (
	"errors"
	"slices"
)

// Closers are the functions that release what a program has opened.
type Closers []func() error

// Add adds a function.
func (c *Closers) Add(f func() error) { *c = append(*c, f) }

// Close calls the functions in reverse order and returns all of their errors. A second Close calls none.
func (c *Closers) Close() (err error) {
	for _, f := range slices.Backward(*c) {
		err = errors.Join(err, f())
	}
	*c = nil
	return err
}
