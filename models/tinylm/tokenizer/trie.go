package tokenizer

// trie holds texts with their ids, and finds those that are a beginning of a given text.
type trie struct {
	nodes []trieNode // the first one is the empty text
	first [256]int32 // children of that node, 0: none
}

type trieNode struct {
	id             int32 // -1: no text ends here
	child, sibling int32 // 0: none
	letter         byte
}

func newTrie() *trie { return &trie{nodes: []trieNode{{id: -1}}} }

// add adds a text, or gives it another id.
func (t *trie) add(text string, id int32) {
	at := int32(0)
	for i := range len(text) {
		next := t.next(at, text[i])
		if next == 0 {
			next = int32(len(t.nodes))
			n := trieNode{id: -1, letter: text[i]}
			if at == 0 {
				t.first[text[i]] = next
			} else {
				n.sibling, t.nodes[at].child = t.nodes[at].child, next
			}
			t.nodes = append(t.nodes, n)
		}
		at = next
	}
	t.nodes[at].id = id
}

// next returns the child of a node, or 0.
func (t *trie) next(at int32, letter byte) int32 {
	if at == 0 {
		return t.first[letter]
	}
	at = t.nodes[at].child
	for at != 0 && t.nodes[at].letter != letter {
		at = t.nodes[at].sibling
	}
	return at
}

// walk calls found for each text in the trie that text begins with, short ones first.
func (t *trie) walk(text []byte, found func(length int, id int32)) {
	at := int32(0)
	for i, b := range text {
		if at = t.next(at, b); at == 0 {
			return
		}
		if id := t.nodes[at].id; id >= 0 {
			found(i+1, id)
		}
	}
}
