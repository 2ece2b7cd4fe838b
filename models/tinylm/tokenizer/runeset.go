package tokenizer

import (
	"strings"
	"unicode"
)

// runeSet has a bit for each character.
type runeSet []uint64

func newRuneSet() runeSet { return make(runeSet, (unicode.MaxRune+1)/64) }

func (s runeSet) has(r rune) bool { return s[r/64]>>(r%64)&1 != 0 }

func (s runeSet) addRange(from, to rune) {
	for r := from; r <= to; r++ {
		s[r/64] |= 1 << (r % 64)
	}
}

func (s runeSet) addTables(tables ...*unicode.RangeTable) {
	for _, t := range tables {
		for _, r := range t.R16 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				s.addRange(c, c)
			}
		}
		for _, r := range t.R32 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				s.addRange(c, c)
			}
		}
	}
}

func (s runeSet) union(other runeSet) {
	for i := range s {
		s[i] |= other[i]
	}
}

func (s runeSet) intersect(other runeSet) {
	for i := range s {
		s[i] &= other[i]
	}
}

func (s runeSet) invert() {
	for i := range s {
		s[i] = ^s[i]
	}
}

// fold adds the characters that equal one of the set when case is ignored.
func (s runeSet) fold() {
	for _, r := range s.spans() {
		for c := r[0]; c <= min(r[1], 0x1ffff); c++ { // no larger one has a case
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				s.addRange(f, f)
			}
		}
	}
}

// spans returns the ranges of the set.
func (s runeSet) spans() (all [][2]rune) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if r%64 == 0 && s[r/64] == 0 {
			r += 63
			continue
		}
		if !s.has(r) {
			continue
		}
		from := r
		for r < unicode.MaxRune && s.has(r+1) {
			r++
		}
		all = append(all, [2]rune{from, r})
	}
	return all
}

// ranges returns the set as it stands inside of [ ], without surrogates, which no text has.
func (s runeSet) ranges() string {
	var b strings.Builder
	for _, r := range s.spans() {
		for _, part := range [][2]rune{{r[0], min(r[1], 0xd7ff)}, {max(r[0], 0xe000), r[1]}} {
			if part[0] > part[1] {
				continue
			}
			b.WriteString(rangeItem(part[0], part[1]).text)
		}
	}
	return b.String()
}
