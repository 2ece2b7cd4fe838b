package tokenizer

import "fmt"

// A file may make a text longer: the steps that a text goes through may together add growthFactor times its bytes, and
// freeGrowth.
const (
	growthFactor = 16
	freeGrowth   = 4 << 10
)

// budget is the number of bytes that may still be added to a text, to all its parts in all steps together.
type budget struct{ length, left int }

// newBudget returns the budget of a text of the given length.
func newBudget(length int) *budget { return &budget{length, growthFactor*length + freeGrowth} }

// check stops if n more bytes are too many.
func (b *budget) check(n int) {
	if n > b.left {
		panic(stop{fmt.Errorf("the tokenizer makes a text of %d bytes longer by more than %d, want less",
			b.length, growthFactor*b.length+freeGrowth)})
	}
}

// take takes n bytes from the budget if n > 0.
func (b *budget) take(n int) {
	b.check(n)
	b.left -= max(0, n)
}

// stop is the only error of finders, normalizers, splitters and decoders, for a pattern that takes too long or a text
// that becomes too long. They return no error: they panic with a stop, and their callers catch it.
type stop struct{ error }

// catchStop turns the panic of a stop into an error. Call it with defer.
func catchStop(err *error) {
	switch p := recover().(type) {
	case nil:
	case stop:
		*err = p
	default:
		panic(p)
	}
}
