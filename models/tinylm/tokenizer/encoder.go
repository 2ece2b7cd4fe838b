package tokenizer

import "github.com/gorgonia-nsa/nsa/internal/text"

const (
	cachedWords = 1 << 16 // most words in the cache of an encoder
	cachedBytes = 64      // most bytes of a word in the cache
	wordBytes   = 1 << 20 // most bytes of a word; a longer one is no real text and is cut
)

// encoder turns text into tokens. Only one goroutine may use it at a time.
type encoder struct {
	t      *huggingFace
	ids    []int32
	err    error // the first one
	budget *budget
	cache  map[string][]int32

	// Buffers that models use for a word.
	spelled []byte
	symbols []symbol
	queue   mergeQueue
	paths   []path
	cuts    []int
}

func newEncoder(t *huggingFace) *encoder {
	return &encoder{t: t, cache: map[string][]int32{}}
}

func (e *encoder) add(id int32) { e.ids = append(e.ids, id) }

// step splits a text without added tokens by pre-tokenizer i, and its words by those after it. begins says that the
// text is the beginning of the whole text.
func (e *encoder) step(i int, text []byte, begins bool) {
	if i == len(e.t.steps) {
		e.addWord(text)
		return
	}
	split, left := e.t.steps[i].split, len(text)
	if start := e.t.steps[i].start; begins && start != nil {
		split = start
	}
	split(text, func(word []byte) {
		if left -= len(word); left < 0 {
			e.budget.take(-left)
			left = 0
		}
		e.step(i+1, word, false) // only the first step distinguishes the beginning
	})
}

func (e *encoder) addWord(word []byte) {
	if e.err != nil {
		return
	}
	if ids, ok := e.cache[string(word)]; ok {
		e.ids = append(e.ids, ids...)
		return
	}
	for len(word) > wordBytes {
		n := text.RuneStart(word, wordBytes)
		e.spell(word[:n])
		word = word[n:]
	}
	from := len(e.ids)
	e.spell(word)
	if len(word) <= cachedBytes && len(e.ids)-from <= 4*cachedBytes && e.err == nil {
		if len(e.cache) >= cachedWords {
			clear(e.cache)
		}
		e.cache[string(word)] = append([]int32(nil), e.ids[from:]...)
	}
}

// spell passes a word to the model, spelled in letters for bytes if the vocabulary has these.
func (e *encoder) spell(word []byte) {
	if e.t.spells {
		e.spelled = e.t.letters.spell(e.spelled[:0], word)
		word = e.spelled
	}
	if err := e.t.model.encode(e, word); err != nil && e.err == nil {
		e.err = err
	}
}
