package tokenizer

import (
	"unicode"

	"golang.org/x/text/unicode/rangetable"
)

// The tables of the reference have different ages: what is newer is no accent, no punctuation and has no other form.
var (
	inUnicode8 = rangetable.Assigned("8.0.0")
	inUnicode9 = rangetable.Assigned("9.0.0")
)

// chinese are the characters that BertNormalizer puts spaces around. The gap up to U+2B920 is in the reference too.
var chinese = &unicode.RangeTable{
	R16: []unicode.Range16{{0x3400, 0x4dbf, 1}, {0x4e00, 0x9fff, 1}, {0xf900, 0xfaff, 1}},
	R32: []unicode.Range32{{0x20000, 0x2a6df, 1}, {0x2a700, 0x2b81f, 1}, {0x2b920, 0x2ceaf, 1}, {0x2f800, 0x2fa1f, 1}},
}

// stripAccent returns -1 for an accent and other characters unchanged, as BertNormalizer does.
func stripAccent(r rune) rune {
	switch r {
	case 0x1885, 0x1886, 0xa9bd, 0x111c9: // accents in today's tables alone
		return r
	case 0x1734: // not in today's tables
		return -1
	}
	if unicode.Is(unicode.Mn, r) && unicode.Is(inUnicode8, r) {
		return -1
	}
	return r
}

// clean returns -1 for a control character and a space for white space, as BertNormalizer does.
func clean(r rune) rune {
	switch {
	case r == '\t' || r == '\n' || r == '\r':
		return ' '
	case r == 0x0890 || r == 0x0891 || r == 0x08e2 || r == 0x110cd || r >= 0x13430 && r <= 0x1343f:
		return r // newer than the tables of the reference
	case r == unicode.ReplacementChar || unicode.Is(unicode.C, r):
		return -1
	case unicode.IsSpace(r):
		return ' '
	}
	return r
}

// isPunctuation reports whether a character is punctuation or an ASCII symbol.
func isPunctuation(r rune) bool {
	switch {
	case r < unicode.MaxASCII:
		return unicode.IsPunct(r) || unicode.IsSymbol(r)
	case r == 0x166d || r == 0x111c9: // not punctuation in today's tables
		return true
	}
	return unicode.IsPunct(r) && unicode.Is(inUnicode8, r)
}

func isWord(r rune) bool {
	if r < unicode.MaxASCII {
		return r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z'
	}
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic,
		unicode.Join_Control)
}
