package tinylm

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// heldOutPart: one in so many parts of the data is held out.
const heldOutPart = 20

// Data is text as tokens, one byte each, cut into a part to train on and a part that is held out.
type Data struct {
	Name    string
	Train   []byte
	HeldOut []byte
}

// ReadData reads a file, or the text files below a folder whose names end in ext ("" is any). path may be a link; below it
// only regular files count, and no binary ones, which are those with a zero byte. About every twentieth file of a folder is
// held out, chosen by a hash of its name. The last twentieth of the text is held out instead for a single file, and where
// the chosen files are less than a hundredth or more than half of the text.
func ReadData(path, ext string) (*Data, error) {
	d := &Data{Name: path}
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case info.IsDir():
		err = d.readFolder(path, ext)
	case info.Mode().IsRegular():
		d.Train, err = d.readFile(path, info)
	default:
		err = fmt.Errorf("%s is neither a file nor a folder", path)
	}
	if err != nil {
		return nil, fmt.Errorf("tinylm: data: %w", err)
	}
	if total := len(d.Train) + len(d.HeldOut); 100*len(d.HeldOut) < total || 2*len(d.HeldOut) > total {
		d.split(append(d.Train, d.HeldOut...))
	}
	if len(d.Train) == 0 {
		return nil, fmt.Errorf("tinylm: data: %s is empty", path)
	}
	return d, nil
}

// split holds the last twentieth of a text out.
func (d *Data) split(all []byte) {
	cut := len(all) - len(all)/heldOutPart
	d.Train, d.HeldOut = all[:cut], all[cut:]
}

// readFile reads a file, if the host has the memory for it beside d.
func (d *Data) readFile(path string, info fs.FileInfo) ([]byte, error) {
	if err := cpu.CheckMemory(int(min(info.Size(), math.MaxInt/4)) + len(d.Train) + len(d.HeldOut)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.ReadFile(path)
}

// readFolder appends the files below root to d in the order of their names, a line break after each.
func (d *Data) readFolder(root, ext string) error {
	files := 0
	// The dot makes WalkDir follow a link; Debian's GOROOT/src is one.
	err := filepath.WalkDir(filepath.FromSlash(root+"/."), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ext) {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := d.readFile(path, info)
		if err != nil || bytes.IndexByte(text, 0) >= 0 {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files++
		h := fnv.New32a()
		h.Write([]byte(filepath.ToSlash(name)))
		part := &d.Train
		if h.Sum32()%heldOutPart == 0 {
			part = &d.HeldOut
		}
		*part = append(append(*part, text...), '\n')
		return nil
	})
	if err == nil && files == 0 {
		err = fmt.Errorf("no text file *%s below %s", ext, root)
	}
	return err
}

// RandomData returns n random tokens below vocab, at most 256. Nothing can be learned from them: no model's held-out loss
// is below ln(vocab), which shows that no information leaks from a token's future.
func RandomData(n, vocab int, seed uint64) (*Data, error) {
	if n < 1 || vocab < 1 || vocab > 256 {
		return nil, fmt.Errorf("tinylm: data: %d random tokens below %d, want at least 1 below at most 256", n, vocab)
	}
	if err := cpu.CheckMemory(n); err != nil {
		return nil, fmt.Errorf("tinylm: data: %w", err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(r.UintN(uint(vocab)))
	}
	d := &Data{Name: "random bytes"}
	d.split(all)
	return d, nil
}

// Check returns an error when a part of d is too short for a window of seq tokens and its last target, or holds a token
// that is not below vocab.
func (d *Data) Check(seq, vocab int) error {
	for _, p := range []struct {
		name string
		text []byte
	}{{"training", d.Train}, {"held-out", d.HeldOut}} {
		if len(p.text) < seq+1 {
			return fmt.Errorf("tinylm: data: %s: the %s part has %d bytes, want at least %d for a context of %d",
				d.Name, p.name, len(p.text), seq+1, seq)
		}
		for i, b := range p.text {
			if int(b) >= vocab {
				return fmt.Errorf("tinylm: data: %s: byte %d of the %s part is %d, the vocabulary has %d", d.Name, i, p.name, b, vocab)
			}
		}
	}
	return nil
}

// batches draws random windows of a text.
type batches struct {
	text []byte
	rand *rand.Rand
}

func newBatches(text []byte, seed uint64) *batches {
	return &batches{text, rand.New(rand.NewPCG(seed, 2))}
}

// next fills the batch of m.
func (b *batches) next(m *Model) {
	m.fill(b.text, func(int) int { return b.rand.IntN(len(b.text) - m.seq) })
}

// fill makes each row of the batch the tokens of text from the offset at(row) on, its targets the tokens after each of them.
func (m *Model) fill(text []byte, at func(row int) int) {
	for row := range m.batch {
		window := text[at(row):]
		for i := range m.seq {
			m.tokens[row*m.seq+i], m.targets[row*m.seq+i] = int32(window[i]), int32(window[i+1])
		}
	}
}

// Encode returns the tokens of text, one a byte.
func Encode(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	return ids
}

// Decode returns the text of tokens that are bytes.
func Decode(ids []int32) (string, error) {
	b := make([]byte, len(ids))
	for i, id := range ids {
		if id < 0 || id > 255 {
			return "", fmt.Errorf("tinylm: token %d at %d is not a byte", id, i)
		}
		b[i] = byte(id)
	}
	return string(b), nil
}

// Printable returns text for a terminal: control characters and bytes that are not UTF-8 are replaced.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// spread fills batch number i of n with windows at equal distances over the whole of text.
func (m *Model) spread(text []byte, i, n int) {
	m.fill(text, func(row int) int { return (i*m.batch + row) * (len(text) - m.seq - 1) / max(1, n*m.batch-1) })
}

// Evaluate returns the mean loss over n batches of windows spread over text, the same windows at every call.
func (m *Model) Evaluate(text []byte, n int) (float64, error) {
	if len(text) < m.seq+1 || n < 1 {
		return 0, fmt.Errorf("tinylm: evaluate: %d batches of %d bytes, want at least 1 of %d", n, len(text), m.seq+1)
	}
	if n > math.MaxInt/m.batch/len(text) {
		return 0, fmt.Errorf("tinylm: evaluate: %d batches of %d windows are too many", n, m.batch)
	}
	sum := 0.0
	for i := range n {
		m.spread(text, i, n)
		if err := m.Run(); err != nil {
			return 0, err
		}
		loss, err := m.Loss()
		if err != nil {
			return 0, err
		}
		sum += loss
	}
	return sum / float64(n), nil
}
