// Package text says where text in UTF-8 may be cut.
package text

import "unicode/utf8"

// RuneStart returns the largest index up to i at which no character of text is cut, or i if text is not UTF-8.
func RuneStart(text []byte, i int) int {
	for j := i; j >= 0 && j > i-utf8.UTFMax; j-- {
		if j == len(text) || utf8.RuneStart(text[j]) {
			return j
		}
	}
	return i
}
