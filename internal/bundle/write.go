package main

import (
	"archive/tar"
	"compress/gzip"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/atomicfile"
)

//go:embed run.sh
var script []byte

// table is the file that tells the script what there is: a line for each binary that it runs, of its name, its folder, what
// it is (gpu, cpu or program) and its command.
const table = "binaries.tsv"

// write builds items into o.out: programs into bin, and each package's tests, beside what they read, into test/<its path>.
func write(root string, items []item, o options) error {
	if err := empty(o.out); err != nil {
		return err
	}
	var lines strings.Builder
	for _, i := range items {
		fmt.Printf("%s\n", i.name)
		if !i.test {
			if err := build(root, i, filepath.Join(o.out, "bin", path.Base(i.path)), o); err != nil {
				return err
			}
			if i.args != nil {
				fmt.Fprintf(&lines, "%s\t.\t%s\tbin/%s\n", i.name, i.device(), strings.Join(append([]string{path.Base(i.path)}, i.args...), " "))
			}
			continue
		}
		folder := path.Join("test", i.path)
		if err := mirror(filepath.Join(o.out, folder), i.pkg); err != nil {
			return err
		}
		if err := build(root, i, filepath.Join(o.out, folder, i.name+".test"), o); err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%s\t%s\t%s\t./%s.test\n", i.name, folder, i.device(), i.name)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(o.out, table), []byte(lines.String()), 0o644),
		os.WriteFile(filepath.Join(o.out, "run.sh"), script, 0o755))
}

// empty makes the folder, or removes what an earlier bundle has left in it. It is an error if it holds anything else.
func empty(dir string) error {
	old, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	ours := []string{"bin", "test", "logs", table, "run.sh"}
	for _, e := range old {
		if !slices.Contains(ours, e.Name()) {
			return fmt.Errorf("%s holds %s, which is not of a bundle: want a folder of its own", dir, e.Name())
		}
	}
	for _, name := range ours {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// build compiles an item, without what debuggers read.
func build(root string, i item, to string, o options) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	env := append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+o.arch)
	args := []string{"build", "-buildvcs=auto"} // bench says which commit it is of
	if i.test {
		args = []string{"test", "-c"}
	}
	if i.tags != "" {
		cgo, undo, err := cuFlags(root, o.cuda)
		if err != nil {
			return fmt.Errorf("%s: %w", i.name, err)
		}
		defer undo()
		env = append(env, cgo...)
		args = append(args, "-tags", i.tags)
	}
	c := exec.Command("go", append(args, "-ldflags=-s -w", "-o", to, i.pkg.ImportPath)...)
	c.Dir, c.Env, c.Stdout, c.Stderr = root, env, os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: go %s: %w", i.name, strings.Join(args, " "), err)
	}
	return nil
}

// mirror copies what a package's tests may read to dir: testdata, and the files of its folder that are not Go's.
func mirror(dir string, p listed) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		name := f.Name()
		from, to := filepath.Join(p.Dir, name), filepath.Join(dir, name)
		switch {
		case f.IsDir() && name == "testdata":
			err = os.CopyFS(to, os.DirFS(from))
		case !f.Type().IsRegular() || strings.HasPrefix(name, ".") ||
			slices.Contains([]string{".go", ".s", ".test", ".prof"}, filepath.Ext(name)):
		default:
			err = copyFile(to, from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o644)
}

// pack writes the folder dir to an archive, in which it is named bundle. zstd sees what the binaries have in common.
func pack(archive, dir string) error {
	return atomicfile.Write(archive, func(w io.Writer) error {
		if strings.HasSuffix(archive, ".gz") {
			z := gzip.NewWriter(w)
			return errors.Join(tarball(z, dir), z.Close())
		}
		z := exec.Command("zstd", "-q", "-9", "--long=27", "-c")
		z.Stdout, z.Stderr = w, os.Stderr
		in, err := z.StdinPipe()
		if err == nil {
			err = z.Start()
		}
		if err != nil {
			return err
		}
		return errors.Join(tarball(in, dir), in.Close(), z.Wait())
	})
}

func tarball(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		err = t.WriteHeader(&tar.Header{Name: path.Join("bundle", filepath.ToSlash(name)), Mode: int64(info.Mode().Perm()),
			Size: int64(len(data)), ModTime: info.ModTime(), Typeflag: tar.TypeReg})
		if err != nil {
			return err
		}
		_, err = t.Write(data)
		return err
	})
	return errors.Join(err, t.Close())
}
