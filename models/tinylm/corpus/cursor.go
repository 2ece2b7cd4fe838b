package corpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// Cursor is a place in the order of a corpus. It may be saved as JSON. The zero value is the beginning.
type Cursor struct {
	Data     string `json:"data"`     // hash of the corpus
	Seed     uint64 `json:"seed"`     // of the order
	Seq      int    `json:"seq"`      // tokens of a window
	Epoch    int    `json:"epoch"`    // epochs that are done
	Block    int    `json:"block"`    // blocks of this epoch that are done
	Unit     int    `json:"unit"`     // where the block begins: the place of a unit in the epoch's order,
	Document int    `json:"document"` // a document of it
	Offset   int    `json:"offset"`   // and a token of that
	Window   int    `json:"window"`   // windows of the block that are done
	Token    int    `json:"token"`    // tokens of the next window that are done
	Sum      uint32 `json:"sum"`      // of the other fields
}

// sum returns the checksum of the other fields.
func (c Cursor) sum() uint32 {
	c.Sum = 0
	b, err := json.Marshal(c)
	if err != nil { // numbers and a string have a JSON form
		return 0
	}
	return crc32.ChecksumIEEE(b)
}

// check returns an error if a reader of windows of seq tokens cannot go on from the cursor.
func (c *Corpus) check(at Cursor, seq int) error {
	switch {
	case at == Cursor{}:
		return nil
	case at.Sum != at.sum():
		return errors.New("cursor: the checksum does not fit, it was changed or damaged")
	case at.Data != c.hash:
		return fmt.Errorf("cursor: it is of the data %s, want %s: files, tokenizer or held-out part have changed", at.Data, c.hash)
	case at.Seed != c.seed:
		return fmt.Errorf("cursor: it is of the seed %d, want %d", at.Seed, c.seed)
	case at.Seq != seq:
		return fmt.Errorf("cursor: it is of windows of %d tokens, want %d", at.Seq, seq)
	case at.Epoch < 0 || at.Block < 0 || at.Unit < 0 || at.Unit >= len(c.units) || at.Document < 0 || at.Offset < 0 ||
		at.Window < 0 || at.Token < 0 || at.Token >= seq:
		return errors.New("cursor: it points outside the data")
	}
	return nil
}
