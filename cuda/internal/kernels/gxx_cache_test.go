package kernels_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// cacheFolder is the folder in the user's cache for what g++ has made, "" if there is no cache.
func cacheFolder() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(cache, "nsa-kernels-on-host")
}

// sourcesKey returns a hash of the sources of all kernels, of the version of g++, and of settings.
func sourcesKey(settings string) (string, error) {
	version, err := exec.Command("g++", "--version").Output()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s%s", version, settings)
	for _, pattern := range []string{"testdata/host/*", "*.cuh", "*/*.cuh", "*/*.cu"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(sum, "%s %d\n%s", file, len(text), text)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}

// useCached calls use with a file that build has made: with the one in dir, if it is there and whole, and use takes it,
// or else with a new one in a temporary folder, of which dir gets a copy. Behind the content of a copy stands its
// SHA-256. Without a dir, or if it cannot be written to, each call builds.
func useCached(dir, name string, build, use func(file string) error) error {
	cached := filepath.Join(dir, name)
	if data, err := os.ReadFile(cached); dir != "" && err == nil && len(data) >= sha256.Size {
		content := data[:len(data)-sha256.Size]
		if sum := sha256.Sum256(content); bytes.HasSuffix(data, sum[:]) && use(cached) == nil {
			return nil
		}
	}
	work, err := os.MkdirTemp("", "nsa-kernels-on-host")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	file := filepath.Join(work, name)
	if err := build(file); err != nil {
		return err
	}
	if dir != "" {
		if err := keep(file, cached); err != nil {
			fmt.Fprintf(os.Stderr, "kernels: %v: the next run builds again\n", err)
		}
	}
	return use(file)
}

// keep copies a file and its SHA-256 to cached, which is at no time there in part.
func keep(file, cached string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if err := os.MkdirAll(filepath.Dir(cached), 0o700); err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(cached), "part-*")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) // after a failure
	_, err = part.Write(append(data, sum[:]...))
	if err = errors.Join(err, part.Close()); err == nil {
		err = os.Rename(part.Name(), cached)
	}
	if err != nil {
		return err
	}
	return removeOld(filepath.Dir(cached))
}

// removeOld removes what has been in a folder for a month.
func removeOld(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		info, failed := e.Info()
		if failed == nil && time.Since(info.ModTime()) > 30*24*time.Hour {
			failed = os.Remove(filepath.Join(dir, e.Name()))
		}
		if !errors.Is(failed, os.ErrNotExist) { // another process may have removed it
			err = errors.Join(err, failed)
		}
	}
	return err
}

// TestHostLibraryIsCached: what was built is used again while it is whole, else built again.
func TestHostLibraryIsCached(t *testing.T) {
	const content = "a library"
	dir := filepath.Join(t.TempDir(), "new", "cache")
	builds := 0
	build := func(file string) error {
		builds++
		return os.WriteFile(file, []byte(content), 0o600)
	}
	use := func(file string) error {
		data, err := os.ReadFile(file)
		if err == nil && !bytes.HasPrefix(data, []byte(content)) {
			err = errors.New("wrong content")
		}
		return err
	}
	get := func(dir string, use func(string) error) int {
		builds = 0
		require.NoError(t, useCached(dir, "x.so", build, use))
		return builds
	}
	require.Equal(t, 1, get(dir, use))
	require.Equal(t, 0, get(dir, use))
	cached := filepath.Join(dir, "x.so")
	whole := testutil.Must(os.ReadFile(cached))(t)
	for i := 0; i < len(whole); i += 4 {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1
		for _, broken := range [][]byte{whole[:i], flipped, append(bytes.Clone(whole), 0)} {
			require.NoError(t, os.WriteFile(cached, broken, 0o600))
			require.Equal(t, 1, get(dir, use))
			require.Equal(t, whole, testutil.Must(os.ReadFile(cached))(t))
		}
	}
	old, lastYear := filepath.Join(dir, "old.so"), time.Now().AddDate(-1, 0, 0)
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, os.Chtimes(old, lastYear, lastYear))
	require.NoError(t, os.Remove(cached))
	require.Equal(t, 1, get(dir, use))
	require.Len(t, testutil.Must(os.ReadDir(dir))(t), 1, "files of others and of last year")

	notCached := func(file string) error {
		if file == cached {
			return errors.New("a file system without execution")
		}
		return use(file)
	}
	require.Equal(t, 1, get(dir, notCached))
	require.Equal(t, 1, get("", use))
	require.Equal(t, 1, get(cached, use), "a folder that cannot be made")
}
