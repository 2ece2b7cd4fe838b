// Command build compiles the CUDA kernels in the folders of the current one: each x.cu becomes x.fatbin, with code for sm_80, sm_89 and
// sm_90a and PTX of compute_80 for newer devices. manifest.json records the sources, compiler and flags of each binary; units that
// have not changed are left alone.
//
// nvcc is installed by pip into the folder .nvcc, which git ignores. This needs Python 3 with pip, a host C++ compiler and Linux.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/atomicwriter"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

// compiler is the version of nvcc, packages are what it consists of.
const compiler = "13.0.88"

var packages = []string{
	"nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88",
	"nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cccl==13.0.85",
}

var flags = []string{
	"-fatbin", "--std=c++17", "-O3", "-Xptxas=-v", "-compress-mode=size", "-diag-error=177",
	"-gencode=arch=compute_80,code=[sm_80,compute_80]",
	"-gencode=arch=compute_89,code=sm_89",
	"-gencode=arch=compute_90a,code=sm_90a",
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("build: ")
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	sources, err := filepath.Glob("*/*.cu")
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return errors.New("no .cu files here")
	}
	old := &manifest.Manifest{}
	if data, err := os.ReadFile(manifest.File); err == nil {
		if old, err = manifest.Parse(data); err != nil {
			log.Printf("%v: compiling all", err)
			old = &manifest.Manifest{}
		}
	}
	allStale := old.Compiler != compiler || !slices.Equal(old.Flags, flags)
	next := &manifest.Manifest{Compiler: compiler, Flags: flags, Units: map[string]manifest.Unit{}}
	var stale []string
	for _, file := range sources {
		file = filepath.ToSlash(file)
		name := strings.TrimSuffix(file, ".cu")
		unit := manifest.Unit{}
		if unit.Sources, err = manifest.Sources(".", file); err != nil {
			return err
		}
		if previous := old.Units[name]; !allStale && maps.Equal(previous.Sources, unit.Sources) && hasSum(name+".fatbin", previous.Fatbin) {
			unit = previous
		} else {
			stale = append(stale, name)
		}
		next.Units[name] = unit
	}
	var failed error
	if len(stale) > 0 {
		nvcc, err := install()
		if err != nil {
			return err
		}
		failed = compileAll(nvcc, stale, old, next)
	}
	return errors.Join(failed, finish(next))
}

// hasSum reports whether the file exists and has the hash.
func hasSum(file, sum string) bool {
	data, err := os.ReadFile(file)
	return err == nil && manifest.Sum(data) == sum
}

// install returns the path of nvcc, and installs it first if it is missing.
func install() (string, error) {
	dir, err := filepath.Abs(".nvcc")
	if err != nil {
		return "", err
	}
	nvcc := filepath.Join(dir, "nvidia", "cu13", "bin", "nvcc")
	if out, err := exec.Command(nvcc, "--version").Output(); err == nil && strings.Contains(string(out), "V"+compiler) {
		return nvcc, nil
	}
	log.Printf("installing nvcc %s", compiler)
	pip := exec.Command("python3", append([]string{"-m", "pip", "install", "--quiet", "--upgrade", "--target", dir}, packages...)...)
	pip.Stdout, pip.Stderr = os.Stderr, os.Stderr
	if err := pip.Run(); err != nil {
		return "", fmt.Errorf("install nvcc: %w", err)
	}
	return nvcc, nil
}

// compileAll compiles the named units, several at a time, and describes them in next. Units that do not compile stay as they are in old.
func compileAll(nvcc string, names []string, old, next *manifest.Manifest) error {
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	units, errs := make([]manifest.Unit, len(names)), make([]error, len(names))
	for i, name := range names {
		units[i] = next.Units[name]
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = compile(nvcc, name, &units[i])
		})
	}
	group.Wait()
	for i, name := range names {
		if errs[i] != nil {
			units[i], errs[i] = old.Units[name], fmt.Errorf("%s.cu: %w", name, errs[i])
		}
		next.Units[name] = units[i]
	}
	return errors.Join(errs...)
}

// compile makes one fat binary, writes it and describes it in unit. The intermediate files, among them the PTX, lie in a folder of their own.
func compile(nvcc, name string, unit *manifest.Unit) error {
	dir, err := os.MkdirTemp("", "nsa-kernels")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	base := filepath.Base(name)
	out := filepath.Join(dir, base+".fatbin")
	args := append(slices.Clone(flags), "-I.", "-keep", "-keep-dir", dir, "-o", out, name+".cu")
	output, err := exec.Command(nvcc, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nvcc: %w\n%s", err, output)
	}
	ptx, err := os.ReadFile(filepath.Join(dir, base+".compute_80.ptx"))
	if errors.Is(err, os.ErrNotExist) {
		ptx, err = os.ReadFile(filepath.Join(dir, base+".ptx"))
	}
	if err != nil {
		return err
	}
	kernels, warnings, err := describe(string(output), string(ptx))
	if err != nil {
		return err
	}
	for _, w := range warnings {
		log.Printf("%s: %s", name, w)
	}
	fatbin, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	unit.Fatbin, unit.Kernels = manifest.Sum(fatbin), kernels
	log.Printf("%s: %d kernels, %d bytes", name, len(kernels), len(fatbin))
	return atomicwriter.WriteFile(name+".fatbin", fatbin, 0o644)
}

// finish removes fat binaries without a source and writes the manifest.
func finish(next *manifest.Manifest) error {
	files, err := filepath.Glob("*/*.fatbin")
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, ok := next.Units[strings.TrimSuffix(filepath.ToSlash(f), ".fatbin")]; !ok {
			if err := os.Remove(f); err != nil {
				return err
			}
		}
	}
	data, err := json.MarshalIndent(next, "", "\t")
	if err != nil {
		return err
	}
	return atomicwriter.WriteFile(manifest.File, append(data, '\n'), 0o644)
}
