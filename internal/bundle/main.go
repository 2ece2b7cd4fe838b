// Command bundle builds every package's test binary, bench and the examples into a folder for a GPU host that has no Go,
// with the files that the tests read and a script that runs them there.
//
//	go run ./internal/bundle -o bin/bundle              everything; -gpu leaves out what has nothing to do with a GPU
//	go run ./internal/bundle -gpu -archive bundle.tar.zst
//	bin/bundle/run.sh -help                             on the host: runs the tests and prints one table
//
// The binaries are for Linux and need no library but, for tests on a GPU, the NVIDIA driver. With -cu there is one more: the
// driver's tests built with -tags cu, by cgo, which want the C library of this machine or a newer one.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

type options struct {
	out, archive string
	arch         string
	gpu          bool
	only         []string
	cuda         string // folder of the CUDA toolkit, or ""
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bundle: ")
	var o options
	flag.StringVar(&o.out, "o", "", "folder to write; what an earlier bundle has left in it goes")
	flag.StringVar(&o.archive, "archive", "", "archive to write the folder to as well, or alone: .tar.gz, or .tar.zst, which is less than half of that and takes zstd")
	flag.StringVar(&o.arch, "arch", "amd64", "processor of the host: amd64 or arm64")
	flag.BoolVar(&o.gpu, "gpu", false, "only tests that depend on the CUDA driver layer, bench and the examples")
	only := flag.String("only", "", "only what has these names, separated by commas")
	flag.StringVar(&o.cuda, "cu", "", "folder of CUDA, which holds include/cuda.h: add driver-cu, built with -tags cu by cgo")
	list := flag.Bool("n", false, "print what would be built, and build nothing")
	flag.Parse()
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	if err := run(o, *list, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

func run(o options, list bool, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	pkgs, err := packages(root, o.arch)
	if err != nil {
		return err
	}
	items, err := plan(pkgs, o)
	if err != nil {
		return err
	}
	if o.archive != "" && !strings.HasSuffix(o.archive, ".tar.gz") && !strings.HasSuffix(o.archive, ".tar.zst") {
		return fmt.Errorf("archive %s: want a name that ends in .tar.gz or .tar.zst", o.archive)
	}
	if list {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		for _, i := range items {
			fmt.Fprintf(w, "%s\t%s\t%s\n", i.name, i.device(), i.path)
		}
		return w.Flush()
	}
	if o.out == "" {
		if o.archive == "" {
			return errors.New("want -o FOLDER, -archive FILE or -n")
		}
		if o.out, err = os.MkdirTemp("", "bundle"); err != nil {
			return err
		}
		defer os.RemoveAll(o.out)
	}
	if o.archive != "" {
		if err := os.MkdirAll(filepath.Dir(o.archive), 0o755); err != nil {
			return err
		}
	}
	if err := write(root, items, o); err != nil {
		return err
	}
	if o.archive != "" {
		return pack(o.archive, o.out)
	}
	return nil
}

// moduleRoot returns the folder of the module that the current folder is in.
func moduleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	file := strings.TrimSpace(string(mod))
	if filepath.Base(file) != "go.mod" {
		return "", errors.New("no module here")
	}
	return filepath.Dir(file), nil
}
