package corpus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// fileFormat says what the bytes of a file mean.
type fileFormat int

const (
	plainText fileFormat = iota
	jsonLines
	jsonText   // lines or values: the content decides
	jsonValues // a list, or one behind another
	parquetText
	llmcTokens
	numpyTokens
)

// file is a file of a corpus.
type file struct {
	path        string
	name        string // relative to the folder, with slashes
	size        int64  // on the disk
	format      fileFormat
	compression string // ".gz", ".zst" or ""
	field       string // of the text
	tokens      tokenArray
}

// describe returns a file with the format that its name says, in any case, and the field of its text.
func describe(path, name string, size int64, field string) (file, error) {
	f := file{path: path, name: name, size: size, field: cmp.Or(field, defaultField)}
	base, compression := cutCompression(name)
	f.compression = compression
	switch strings.ToLower(filepath.Ext(base)) {
	case ".jsonl", ".ndjson":
		f.format = jsonLines
	case ".json":
		f.format = jsonText
	case ".parquet":
		f.format = parquetText
	case ".bin":
		f.format = llmcTokens
	case ".npy":
		f.format = numpyTokens
	}
	if f.format == parquetText && compression != "" {
		return f, fmt.Errorf("%s: Parquet is read in no fixed order and packs its own pages: unpack the %s",
			path, compression)
	}
	return f, nil
}

// cutCompression returns the name without the extension of a compressed file, and that extension in lower case.
func cutCompression(name string) (base, compression string) {
	switch compression := strings.ToLower(filepath.Ext(name)); compression {
	case ".gz", ".zst":
		return name[:len(name)-len(compression)], compression
	}
	return name, ""
}

// textBytes returns the most memory that reading a document takes, roughly: of a line or value its buffer, which grows
// by a quarter at a time, its text and a part of that as tokens.
func (f file) textBytes() int64 {
	if !f.hasFields() {
		return 0
	}
	longest := int64(documentBytes)
	if f.compression == "" && f.format != parquetText {
		longest = min(longest, f.size)
	}
	return 3*longest + 64<<20
}

// hasFields reports whether the file holds JSON or Parquet.
func (f file) hasFields() bool { return f.format != plainText && !f.isTokens() }

func (f file) isTokens() bool { return f.format == llmcTokens || f.format == numpyTokens }

// list returns the files of path, and counts in c the files that it leaves out: those of other, for which reason is the
// reason, too.
func (c *Corpus) list(ctx context.Context, path, other, reason string, o Options) ([]file, error) {
	info, err := os.Stat(path)
	var leaveOut fs.FileInfo
	if err == nil && other != "" {
		leaveOut, err = os.Stat(other)
	}
	if err != nil {
		return nil, err
	}
	if leaveOut != nil && os.SameFile(info, leaveOut) {
		return nil, fmt.Errorf("%s has both the training data and the evaluation data, want them apart", path)
	}
	if !info.IsDir() {
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is neither a file nor a folder", path)
		}
		if info.Size() == 0 {
			return nil, fmt.Errorf("%s is empty", path)
		}
		f, err := describe(path, filepath.Base(path), info.Size(), o.TextField)
		return []file{f}, err
	}
	files, err := c.listFolder(ctx, path, o, leaveOut, reason)
	if err != nil {
		return nil, err
	}
	if err := checkOneKind(path, files); err != nil {
		return nil, err
	}
	if len(files) == 0 && o.Ext == "" {
		return nil, fmt.Errorf("%s has no file to read: %s", path, describeSkipped(c.Skipped()))
	}
	if len(files) == 0 {
		return nil, fault.Between("Ext", "%s has no file whose name ends in %q: %s",
			path, o.Ext, describeSkipped(c.Skipped()))
	}
	return files, nil
}

// listFolder lists the files of a folder and of the folders below it. It counts what it skips, such as leaveOut for the
// given reason.
func (c *Corpus) listFolder(
	ctx context.Context, path string, o Options, leaveOut fs.FileInfo, reason string,
) (files []file, err error) {
	// The dot makes WalkDir follow a link; Debian's GOROOT/src is one.
	err = filepath.WalkDir(filepath.FromSlash(path+"/."), func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		name, err := filepath.Rel(path, at)
		if err != nil || name == "." { // what is named directly is read
			return err
		}
		name = filepath.ToSlash(name)
		info, skip, err := classify(at, e, o.Ext)
		if err == nil && skip == "" && leaveOut != nil && os.SameFile(info, leaveOut) {
			skip = reason
		}
		switch {
		case err != nil:
			return err
		case skip != "":
			c.skipped.addFile(skip, name)
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		case e.IsDir():
			return nil
		}
		f, err := describe(filepath.Join(path, filepath.FromSlash(name)), name, info.Size(), o.TextField)
		files = append(files, f)
		return err
	})
	return files, err
}

// checkOneKind returns an error if some files of a folder hold text and others tokens.
func checkOneKind(path string, files []file) error {
	for _, f := range files {
		if f.isTokens() != files[0].isTokens() {
			text := files[0]
			if text.isTokens() {
				text, f = f, text
			}
			return fmt.Errorf("%s has text (%s) and tokens (%s), want one of them: choose by an extension",
				path, text.name, f.name)
		}
	}
	return nil
}

// classify returns what a file or folder below the corpus folder is, or the reason to skip it.
func classify(at string, e fs.DirEntry, ext string) (info fs.FileInfo, skip string, err error) {
	base, _ := cutCompression(e.Name())
	switch {
	case strings.HasPrefix(e.Name(), "."):
		return nil, reasonHidden, nil
	case e.IsDir() && IsRun(at):
		return nil, reasonRun, nil
	case e.IsDir():
		info, err = e.Info()
		return info, "", err
	case !strings.EqualFold(base[max(0, len(base)-len(ext)):], ext):
		return nil, reasonExt, nil
	}
	info, err = os.Stat(at) // of a link: the file that it names
	switch isLink := e.Type()&fs.ModeSymlink != 0; {
	case isLink && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP)):
		return nil, reasonLink, nil
	case err != nil:
		return nil, "", err
	case !info.Mode().IsRegular():
		return nil, reasonRegular, nil
	case info.Size() == 0:
		return nil, reasonEmpty, nil
	}
	return info, "", nil
}

// IsRun reports whether a folder is that of a run of package train. A run that was killed at its beginning has only the
// last two files. The names are those of packages train and runlog; train imports this package.
func IsRun(folder string) bool {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(folder, name))
		return err == nil
	}
	return has("config.yaml") && has("run.json") || has(".lock") && has("events.jsonl")
}

// describeSkipped describes in words what was left out.
func describeSkipped(all []Skipped) string {
	if len(all) == 0 {
		return "nothing was skipped"
	}
	var words []string
	for _, s := range all {
		words = append(words, fmt.Sprintf("%d skipped as %s (%q)", s.Files, s.Reason, s.Example))
	}
	return strings.Join(words, ", ")
}

// Skipped counts files, folders or records that were left out for one reason.
type Skipped struct {
	Reason  string // such as "binary"
	Files   int    // number of files, of folders with all that is in them, or of records in files that hold many
	Example string // name of one of them
}

const (
	reasonHidden  = "hidden"
	reasonRun     = "a run's folder"
	reasonExt     = "other extension"
	reasonLink    = "a broken link"
	reasonRegular = "not a regular file"
	reasonEmpty   = "empty"
	reasonBinary  = "binary"
	reasonUTF8    = "not UTF-8"
	reasonNull    = "null"
	reasonJSON    = "not JSON"
	reasonLong    = "longer than 64 MiB" // documentBytes
	reasonEval    = "evaluation data"
	reasonTrain   = "training data"
	reasonNoText  = "neither text nor messages"
)

// tally counts what is skipped. A unit is read once an epoch, but counts once.
type tally struct {
	mutex  sync.Mutex
	counts map[string]*Skipped // by reason
	units  map[unitOf]int      // records of units that are in counts
	fields []string            // of a record without the field
}

type unitOf struct {
	reason string
	unit   unit
}

// addFile counts a file that is not listed.
func (t *tally) addFile(reason, name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.add(reason, name, 1)
}

// addRecords records that n records of a unit of the file have been skipped so far.
func (t *tally) addRecords(reason, name string, u unit, n int) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if known := t.units[unitOf{reason, u}]; n > known {
		t.add(reason, name, n-known)
		t.units[unitOf{reason, u}] = n
	}
}

// add counts n more. The caller holds the mutex.
func (t *tally) add(reason, name string, n int) {
	if t.counts == nil {
		t.counts, t.units = map[string]*Skipped{}, map[unitOf]int{}
	}
	if t.counts[reason] == nil {
		t.counts[reason] = &Skipped{Reason: reason, Example: name}
	}
	t.counts[reason].Files += n
}

// addFields keeps the fields of the first record without the field. fields may be nil.
func (t *tally) addFields(fields func() []string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if fields != nil && t.fields == nil {
		t.fields = fields()
	}
}

func (t *tally) list() (all []Skipped) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, reason := range slices.Sorted(maps.Keys(t.counts)) {
		all = append(all, *t.counts[reason])
	}
	return all
}
