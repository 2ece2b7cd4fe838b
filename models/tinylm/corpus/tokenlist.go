package corpus

import "encoding/binary"

// tokenList is a list of tokens. Each takes as few bytes as the vocabulary allows, so that a block holds more tokens.
type tokenList struct {
	width int // 1, 2 or 4 bytes
	bytes []byte
}

func newTokenList(vocab, room int) tokenList {
	l := tokenList{width: widthOf(vocab)}
	l.bytes = make([]byte, 0, room*l.width)
	return l
}

// widthOf returns the number of bytes of a token of a vocabulary: 1, 2 or 4.
func widthOf(vocab int) int {
	switch {
	case vocab <= 1<<8:
		return 1
	case vocab <= 1<<16:
		return 2
	}
	return 4
}

func (l *tokenList) len() int { return len(l.bytes) / l.width }

// add appends tokens.
func (l *tokenList) add(ids ...int32) {
	switch l.width {
	case 1:
		for _, id := range ids {
			l.bytes = append(l.bytes, byte(id))
		}
	case 2:
		for _, id := range ids {
			l.bytes = binary.LittleEndian.AppendUint16(l.bytes, uint16(id))
		}
	default:
		for _, id := range ids {
			l.bytes = binary.LittleEndian.AppendUint32(l.bytes, uint32(id))
		}
	}
}

// copy copies the tokens [from, end) to to, which has room for them.
func (l *tokenList) copy(to []int32, from, end int) {
	for i := range end - from {
		to[i] = l.at(from + i)
	}
}

// at returns a token.
func (l *tokenList) at(i int) int32 { return int32(firstToken(l.bytes[i*l.width:], l.width)) }

// firstToken returns the first token in b, of width bytes.
func firstToken(b []byte, width int) uint32 {
	switch width {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.LittleEndian.Uint16(b))
	}
	return binary.LittleEndian.Uint32(b)
}
