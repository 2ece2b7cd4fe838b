package train

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/atomicwriter"
)

// summed returns the files of a checkpoint that have sums.
func summed() []string { return []string{modelFile, configFile, solverFile, stateFile} }

// writeSums writes the sums of files of a folder.
func writeSums(folder string, files ...string) error {
	var sums []byte
	for _, file := range files {
		sum, err := sumOf(filepath.Join(folder, file))
		if err != nil {
			return err
		}
		sums = fmt.Appendf(sums, "%s  %s\n", sum, file)
	}
	return atomicwriter.WriteFile(filepath.Join(folder, sumsFile), sums, 0o644)
}

// fileSums are SHA-256 of files by their names.
type fileSums map[string]string

// readSums reads the sums of a folder.
func readSums(folder string) (fileSums, error) {
	text, err := readFile(filepath.Join(folder, sumsFile), 1<<20)
	if err != nil {
		return nil, err
	}
	sums := fileSums{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			return nil, fmt.Errorf("%s: line %q, want a sum and a name", sumsFile, lines.Text())
		}
		sums[strings.TrimLeft(name, " *")] = sum // a star: sha256sum --binary
	}
	return sums, nil
}

// checkBeside checks a file of weights against the sums beside it. Without sums there, nothing is wrong. Nor is it if they do not list the
// file, unless it has the name of a run's model.
func checkBeside(path string) error {
	folder, name := filepath.Dir(path), filepath.Base(path)
	sums, err := readSums(folder)
	if _, listed := sums[name]; errors.Is(err, fs.ErrNotExist) || err == nil && !listed && name != modelFile {
		return nil
	}
	if err == nil {
		err = sums.check(folder, name)
	}
	return err
}

// checkSums checks that files of a folder have their sums.
func checkSums(folder string, files ...string) error {
	sums, err := readSums(folder)
	if err != nil {
		return err
	}
	return sums.check(folder, files...)
}

// check is checkSums for sums that have been read.
func (s fileSums) check(folder string, files ...string) error {
	for _, name := range files {
		sum, err := sumOf(filepath.Join(folder, name))
		if err != nil {
			return err
		}
		if sum != s[name] {
			return fmt.Errorf("%s is damaged: its SHA-256 is %s, want %q", name, sum, s[name])
		}
	}
	return nil
}

// sumOf returns the SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := openRegular(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// openRegular opens a file. It is an error if the path names a pipe, whose opening waits for a writer, a device or a folder.
func openRegular(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return os.Open(path)
}
