package train

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/files"
)

// checkpointFiles returns the names of the files of a checkpoint that have checksums.
func checkpointFiles() []string { return []string{modelFile, configFile, solverFile, stateFile} }

// writeChecksums writes the checksums of files of a folder.
func writeChecksums(folder string, names ...string) error {
	var sums []byte
	for _, file := range names {
		sum, err := checksumOf(filepath.Join(folder, file))
		if err != nil {
			return err
		}
		sums = fmt.Appendf(sums, "%s  %s\n", sum, file)
	}
	return files.Write(filepath.Join(folder, checksumsFile), sums)
}

// checksums are the SHA-256 of files, by file name.
type checksums map[string]string

// readChecksums reads the checksums of a folder.
func readChecksums(folder string) (checksums, error) {
	text, err := files.ReadFile(filepath.Join(folder, checksumsFile), 1<<20)
	if err != nil {
		return nil, err
	}
	sums := checksums{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		sum, name, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("%s: line %.100q, want a sum and a name", checksumsFile, line)
		}
		sums[strings.TrimLeft(name, " *")] = sum // a star: sha256sum --binary
	}
	return sums, nil
}

// verifyWeights checks a file of weights against the checksums beside it. Without checksums there, nothing is wrong. Nor is it if they do not list the
// file, unless it has the name of a run's model.
func verifyWeights(path string) error {
	dir, name := filepath.Dir(path), filepath.Base(path)
	sums, err := readChecksums(dir)
	if _, listed := sums[name]; errors.Is(err, fs.ErrNotExist) || err == nil && !listed && name != modelFile {
		return nil
	}
	if err == nil {
		err = sums.verify(dir, name)
	}
	if err != nil && name == modelFile {
		err = withCheckpoint(folder(dir), err)
	}
	return err
}

// withCheckpoint adds to err, the damage of a run's final model, what is left of it: the newest checkpoint that is whole.
func withCheckpoint(run folder, err error) error {
	if unreadable(err) {
		return err
	}
	if path, _, none := run.newestWhole(); none == nil {
		err = fmt.Errorf("%w: train -resume %s writes it again, or name %s", err, run, path)
	}
	return err
}

// verify checks files of a folder against its checksums.
func (s checksums) verify(folder string, files ...string) error {
	for _, name := range files {
		want, listed := s[name]
		path := filepath.Join(folder, name)
		if !listed && exists(path) {
			return fmt.Errorf("%s: %s does not list it", name, checksumsFile)
		}
		if strings.HasSuffix(name, ".safetensors") { // first, because to read all of a file of terabytes, as after a fault of the disk, takes hours
			if err := safetensors.CheckSize(path); err != nil {
				return err
			}
		}
		sum, err := checksumOf(path)
		switch {
		case err != nil:
			return err
		case sum != want:
			return fmt.Errorf("%s is damaged: its SHA-256 is %s, want %.64q", name, sum, want)
		}
	}
	return nil
}

// checksumOf returns the SHA-256 of a file.
func checksumOf(path string) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return "", err
	} else if filepath.Ext(path) == ".json" && info.Size() > maxState {
		return "", fmt.Errorf("%s: more than %d bytes", path, maxState)
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
