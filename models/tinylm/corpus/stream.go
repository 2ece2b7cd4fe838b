package corpus

import (
	"io"
	"iter"
)

// stream returns the values that read yields and then, if yield has not returned false, its error.
func stream[T any](read func(yield func(T) bool) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		more := true
		err := read(func(value T) bool {
			more = more && yield(value, nil)
			return more
		})
		if err != nil && more {
			var none T
			yield(none, err)
		}
	}
}

// documents returns the documents that read yields of the content of a file, from the given byte on.
func (f file) documents(from int64, read func(in io.Reader, yield func(document) bool) error) documents {
	return stream(func(yield func(document) bool) error {
		in, err := f.open(from)
		if err != nil {
			return err
		}
		defer in.Close()
		return read(in, yield)
	})
}
