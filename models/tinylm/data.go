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
	"slices"
	"strings"
	"unicode"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// heldOutPart: one in so many parts of the data is held out.
const heldOutPart = 20

// Data is text as tokens, one byte each, cut into a part to train on and a part that is held out.
type Data struct {
	Name    string
	Train   []byte
	HeldOut []byte

	// Where the documents of a part end, ascending, the last at the end of the part; nil: the part is one document. Files of a folder
	// are documents. Only Training.Packed looks at them.
	TrainEnds   []int
	HeldOutEnds []int
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
		ends := d.TrainEnds
		for _, end := range d.HeldOutEnds {
			ends = append(ends, len(d.Train)+end)
		}
		d.split(append(d.Train, d.HeldOut...), ends)
	}
	if len(d.Train) == 0 {
		return nil, fmt.Errorf("tinylm: data: %s is empty", path)
	}
	return d, nil
}

// split holds the last twentieth of a text out, whose documents have the given ends.
func (d *Data) split(all []byte, ends []int) {
	cut := len(all) - len(all)/heldOutPart
	d.Train, d.HeldOut = all[:cut], all[cut:]
	if ends == nil {
		return
	}
	i, _ := slices.BinarySearch(ends, cut)
	d.TrainEnds, d.HeldOutEnds = append(slices.Clone(ends[:i]), cut), nil
	for _, end := range ends[i:] {
		if end > cut {
			d.HeldOutEnds = append(d.HeldOutEnds, end-cut)
		}
	}
}

// readFile reads a file, if the host has the memory for it beside d.
func (d *Data) readFile(path string, info fs.FileInfo) ([]byte, error) {
	if err := memory.Check(int(min(info.Size(), math.MaxInt/4)) + len(d.Train) + len(d.HeldOut)); err != nil {
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
		part, ends := &d.Train, &d.TrainEnds
		if h.Sum32()%heldOutPart == 0 {
			part, ends = &d.HeldOut, &d.HeldOutEnds
		}
		*part = append(append(*part, text...), '\n')
		*ends = append(*ends, len(*part))
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
	if err := memory.Check(n); err != nil {
		return nil, fmt.Errorf("tinylm: data: %w", err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	all := make([]byte, n)
	for i := range all {
		all[i] = byte(r.UintN(uint(vocab)))
	}
	d := &Data{Name: "random bytes"}
	d.split(all, nil)
	return d, nil
}

// Check returns an error when a part of d is too short for a window of seq tokens and its last target, holds a token that is not
// below vocab, or has documents that do not end in ascending order, the last with the part.
func (d *Data) Check(seq, vocab int) error {
	for _, p := range []struct {
		name string
		text []byte
		ends []int
	}{{"training", d.Train, d.TrainEnds}, {"held-out", d.HeldOut, d.HeldOutEnds}} {
		if len(p.text) < seq+1 {
			return fmt.Errorf("tinylm: data: %s: the %s part has %d bytes, want at least %d for a context of %d",
				d.Name, p.name, len(p.text), seq+1, seq)
		}
		for i, b := range p.text {
			if int(b) >= vocab {
				return fmt.Errorf("tinylm: data: %s: byte %d of the %s part is %d, the vocabulary has %d", d.Name, i, p.name, b, vocab)
			}
		}
		if err := checkEnds(p.ends, len(p.text)); err != nil {
			return fmt.Errorf("tinylm: data: %s: the %s part: %w", d.Name, p.name, err)
		}
	}
	return nil
}

// checkEnds checks the ends of documents of a text of n tokens.
func checkEnds(ends []int, n int) error {
	last := 0
	for i, end := range ends {
		if end < last || end > n {
			return fmt.Errorf("document %d ends at %d, want %d to %d", i, end, last, n)
		}
		last = end
	}
	if ends != nil && last != n {
		return fmt.Errorf("the last of %d documents ends at %d, want %d", len(ends), last, n)
	}
	return nil
}

// mostDocuments returns the largest number of documents in a window of seq tokens of a text.
func mostDocuments(ends []int, seq int) int {
	if len(ends) > 0 { // those inside the text
		from, _ := slices.BinarySearch(ends, 1)
		to, _ := slices.BinarySearch(ends, ends[len(ends)-1])
		ends = ends[min(from, to):to]
	}
	most, first := 1, 0
	for i, end := range ends {
		for end-ends[first] > seq-2 { // a window has seq-1 places for ends inside it
			first++
			if first > i {
				break
			}
		}
		most = max(most, i-first+2)
	}
	return most
}

// batches draws random windows of a text.
type batches struct {
	text []byte
	ends []int // of its documents
	rand *rand.Rand
}

func newBatches(text []byte, ends []int, seed uint64) *batches {
	return &batches{text, ends, rand.New(rand.NewPCG(seed, 2))}
}

// next fills the batch of m.
func (b *batches) next(m *Model) {
	m.fill(b.text, b.ends, func(int) int { return b.rand.IntN(len(b.text) - m.seq) })
}

// fill makes each row of the batch the tokens of text from the offset at(row) on, its targets the tokens after each of them. In a
// model WithDocuments the row has the documents of the text, cut at its ends, and their last tokens predict nothing.
func (m *Model) fill(text []byte, ends []int, at func(row int) int) {
	documents := 0
	for row := range m.batch {
		first := at(row)
		window := text[first:]
		for i := range m.seq {
			m.tokens[row*m.seq+i], m.targets[row*m.seq+i] = int32(window[i]), int32(window[i+1])
		}
		if m.cuSeqlens == nil {
			continue
		}
		next, _ := slices.BinarySearch(ends, first+1)
		for ; next < len(ends) && ends[next] < first+m.seq; next++ {
			documents++
			end := row*m.seq + ends[next] - first
			m.cuSeqlens[documents], m.targets[end-1] = int32(end), -1
		}
		documents++
		m.cuSeqlens[documents] = int32((row + 1) * m.seq)
		if _, ok := slices.BinarySearch(ends, first+m.seq); ok {
			m.targets[(row+1)*m.seq-1] = -1
		}
	}
	if m.cuSeqlens != nil {
		for i := documents + 1; i < len(m.cuSeqlens); i++ {
			m.cuSeqlens[i] = m.cuSeqlens[documents]
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
func (m *Model) spread(text []byte, ends []int, i, n int) {
	m.fill(text, ends, func(row int) int { return (i*m.batch + row) * (len(text) - m.seq - 1) / max(1, n*m.batch-1) })
}

// Evaluate returns the mean loss over n batches of windows spread over text, the same windows at every call.
func (m *Model) Evaluate(text []byte, n int) (float64, error) {
	return m.EvaluateDocuments(text, nil, n)
}

// EvaluateDocuments is Evaluate for documents with the given ends in text, of a model WithDocuments. Another model does not look at
// the ends.
func (m *Model) EvaluateDocuments(text []byte, ends []int, n int) (float64, error) {
	if len(text) < m.seq+1 || n < 1 {
		return 0, fmt.Errorf("tinylm: evaluate: %d batches of %d bytes, want at least 1 of %d", n, len(text), m.seq+1)
	}
	if n > math.MaxInt/m.batch/len(text) {
		return 0, fmt.Errorf("tinylm: evaluate: %d batches of %d windows are too many", n, m.batch)
	}
	if m.sums != nil {
		return 0, fmt.Errorf("tinylm: evaluate: %w", errAccumulates)
	}
	if m.cuSeqlens != nil {
		if err := checkEnds(ends, len(text)); err != nil {
			return 0, fmt.Errorf("tinylm: evaluate: %w", err)
		}
		if most := m.batch * mostDocuments(ends, m.seq); most >= len(m.cuSeqlens) {
			return 0, fmt.Errorf("tinylm: evaluate: %d windows may have %d documents, the model has room for %d", m.batch, most, len(m.cuSeqlens)-1)
		}
	}
	sum := 0.0
	for i := range n {
		m.spread(text, ends, i, n)
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
