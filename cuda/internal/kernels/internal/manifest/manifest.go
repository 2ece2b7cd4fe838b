// Package manifest describes the compiled kernels: from which sources each fat binary was made, and what is in it.
package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
)

// File is the name of the manifest beside the fat binaries.
const File = "manifest.json"

// Manifest is the content of File. It holds no dates: the same sources give the same manifest.
type Manifest struct {
	Compiler string          `json:"compiler"` // version of nvcc
	Flags    []string        `json:"flags"`    // of every unit
	Units    map[string]Unit `json:"units"`    // by path: unit x is made from x.cu and lies in x.fatbin
}

// Unit is one fat binary.
type Unit struct {
	Sources map[string]string `json:"sources"` // SHA-256 of the .cu file and of each header that it includes, by path
	Fatbin  string            `json:"fatbin"`  // SHA-256 of the fat binary
	Kernels map[string]Kernel `json:"kernels"` // by symbol
}

// Kernel is what the compiler says of one entry point. Maps are by architecture, as in sm_90a; zeros are left out.
type Kernel struct {
	Params    []int          `json:"params"`           // bytes of each argument
	Registers map[string]int `json:"registers"`        // of a thread
	Spills    map[string]int `json:"spills,omitempty"` // bytes of registers spilled, stores and loads together
}

// Parse decodes the content of File.
func Parse(data []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("kernels: %s: %w", File, err)
	}
	return m, nil
}

// Sum returns the SHA-256 of data in hexadecimal.
func Sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

var include = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// Sources returns the hashes of file, a path in dir, and of what it includes by quoted names, directly or not: headers that lie
// beside the file that includes them, or in dir.
func Sources(dir, file string) (map[string]string, error) {
	sums := map[string]string{}
	for todo := []string{file}; len(todo) > 0; todo = todo[1:] {
		name := todo[0]
		if _, done := sums[name]; done {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("kernels: source: %w", err)
		}
		sums[name] = Sum(text)
		for _, m := range include.FindAllSubmatch(text, -1) {
			header := path.Join(path.Dir(name), string(m[1]))
			if _, err := os.Stat(filepath.Join(dir, header)); err != nil {
				header = string(m[1])
			}
			todo = append(todo, header)
		}
	}
	return sums, nil
}
