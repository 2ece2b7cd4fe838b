package tokenizer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// The patterns of GPT-2, and of Llama 3 and Qwen, which differ in the number of digits of a word. Go's regexp has no
// lookahead.
const (
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Start = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}`
	llama3End   = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// knownPattern returns a scanner that cuts like a known pattern. Matches of these patterns cover every character.
func knownPattern(pattern string) (scanner, bool) {
	switch pattern {
	case gpt2Pattern:
		return gpt2Scanner(), true
	case llama3Start + `{1,3}` + llama3End:
		return scanner{digits: 3}, true
	case llama3Start + llama3End:
		return scanner{digits: 1}, true
	}
	return scanner{}, false
}

// Finding the matches in a text may take at most this time, 30 times what usual patterns need: with some patterns the
// time doubles with each character.
const (
	matchTime     = time.Second
	matchByteTime = 10 * time.Microsecond // more for each byte of the text

	freeTime    = time.Millisecond // beside matchByteTime, of a text; more is overtime
	maxOvertime = 3 * time.Second  // of all texts, such as the words of one; what others take less makes up for it
)

// matches finds a regular expression.
type matches struct {
	pattern  string
	pool     *sync.Pool // of *regexp2.Regexp: each goroutine sets its own time limit
	overtime *atomic.Int64
}

// newMatches compiles a pattern of Oniguruma, the regular expressions of the reference. A pattern that may mean
// something else here is an error.
func newMatches(pattern string) (m matches, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("pattern %.60q: %w", pattern, err)
		}
	}()
	translated, err := translate(pattern)
	if err != nil {
		return m, err
	}
	re, err := regexp2.Compile(translated, regexp2.None)
	if err != nil {
		return m, err
	}
	pool := &sync.Pool{New: func() any { return regexp2.MustCompile(translated, regexp2.None) }}
	m = matches{pattern, pool, new(atomic.Int64)}
	m.pool.Put(re)
	return m, nil
}

func (m matches) find(text []byte, match func(from, to int)) {
	limit := matchTime + time.Duration(len(text))*matchByteTime
	runes, began := []rune(string(text)), time.Now()
	spans, err := m.spans(runes, limit)
	if err != nil { // once more: the process may have been stopped meanwhile
		began = time.Now()
		spans, err = m.spans(runes, limit)
	}
	if err != nil {
		panic(stop{fmt.Errorf("pattern %.60q takes more than %v for a text of %d bytes, want less: it backtracks too much",
			m.pattern, limit, len(text))})
	}
	over := min(time.Since(began), limit) - (limit - matchTime) - freeTime // a stopped process counts at most the limit
	if all := m.overtime.Add(int64(over)); all < 0 {
		m.overtime.Store(0)
	} else if over > 0 && all > int64(maxOvertime) {
		panic(stop{fmt.Errorf("pattern %.60q takes %v too long for many texts, the last one of %d bytes: "+
			"it backtracks too much", m.pattern, time.Duration(all), len(text))})
	}
	at, from := 0, 0 // in runes and in bytes
	skip := func(end int) int {
		for ; at < end; at++ {
			from += utf8.RuneLen(runes[at])
		}
		return from
	}
	for _, s := range spans {
		match(skip(s[0]), skip(s[1]))
	}
}

// spans returns the begin and end of each match in a text, or an error if finding them takes longer than the limit. As
// in the reference, an empty match right behind another match is none.
func (m matches) spans(text []rune, limit time.Duration) (list [][2]int, err error) {
	re := m.pool.Get().(*regexp2.Regexp)
	defer m.pool.Put(re)
	end := time.Now().Add(limit)
	re.MatchTimeout = limit
	match, err := re.FindRunesMatch(text)
	for match != nil && err == nil {
		if n := len(list); match.Length > 0 || n == 0 || match.Index != list[n-1][1] {
			list = append(list, [2]int{match.Index, match.Index + match.Length})
		}
		re.MatchTimeout = time.Until(end)
		match, err = re.FindNextMatch(match)
	}
	return list, err
}
