package tokenizer

import "unicode/utf8"

// letters maps bytes to the letters that stand for them in the vocabulary. Byte-level tokenizers write bytes that are
// not printable ASCII or Latin-1 as characters from U+0100 on.
type letters struct {
	ofByte [256]rune
	bytes  map[rune]byte
}

func newLetters() *letters {
	l := &letters{bytes: map[rune]byte{}}
	next := rune(256)
	for b := rune(0); b < 256; b++ {
		letter := b
		if b < '!' || b > '~' && b < 0xa1 || b == 0xad {
			letter = next
			next++
		}
		l.ofByte[b], l.bytes[letter] = letter, byte(b)
	}
	return l
}

// spell appends the letters of the bytes of a text.
func (l *letters) spell(to, text []byte) []byte {
	for _, b := range text {
		to = utf8.AppendRune(to, l.ofByte[b])
	}
	return to
}

// read returns the bytes that a text of letters stands for. A text with other characters is returned unchanged.
func (l *letters) read(text string) string {
	all := make([]byte, 0, len(text))
	for _, r := range text {
		b, ok := l.bytes[r]
		if !ok {
			return text
		}
		all = append(all, b)
	}
	return string(all)
}
