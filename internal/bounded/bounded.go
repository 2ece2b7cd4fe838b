// Package bounded reads input that may be larger than memory, such as a file that a user names.
package bounded

import (
	"fmt"
	"io"
)

// ReadAll is io.ReadAll of at most the given number of bytes; more are an error.
func ReadAll(r io.Reader, most int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(b) > most {
		err = fmt.Errorf("more than %d bytes", most)
	}
	return b, err
}
