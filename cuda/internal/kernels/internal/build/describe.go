package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

var (
	lostSpeed = regexp.MustCompile(`\(C75(08|10)\)|Potential Performance Loss`) // setmaxnreg is ignored, wgmma has to wait
	entry     = regexp.MustCompile(`Compiling entry function '(\w+)' for '(\w+)'`)
	spills    = regexp.MustCompile(`(\d+) bytes spill stores, (\d+) bytes spill loads`)
	registers = regexp.MustCompile(`Used (\d+) registers`)
	arguments = regexp.MustCompile(`\.entry (\w+)\(([^)]*)\)`)
	argument  = regexp.MustCompile(`\.param.* \.[subf](\d+) [^,\[]*(?:\[(\d+)\])?`)
)

// describe parses the output of ptxas -v and the PTX. It returns registers, spills and argument sizes of each kernel, and the warnings of
// the compiler. Code that loses speed is an error.
func describe(output, ptx string) (kernels map[string]manifest.Kernel, warnings []string, err error) {
	kernels = map[string]manifest.Kernel{}
	for _, m := range arguments.FindAllStringSubmatch(ptx, -1) {
		k := manifest.Kernel{Params: []int{}, Registers: map[string]int{}, Spills: map[string]int{}}
		for _, a := range argument.FindAllStringSubmatch(m[2], -1) {
			bytes := number(a[1]) / 8
			if a[2] != "" {
				bytes *= number(a[2])
			}
			k.Params = append(k.Params, bytes)
		}
		if n := strings.Count(m[2], ".param"); n != len(k.Params) {
			return nil, nil, fmt.Errorf("%s: got the sizes of %d of %d arguments", m[1], len(k.Params), n)
		}
		kernels[m[1]] = k
	}
	name, arch := "", ""
	set := func(m map[string]int, n int) {
		if n > 0 {
			m[arch] = max(m[arch], n) // a kernel and what it calls
		}
	}
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		k, known := kernels[name]
		if m := entry.FindStringSubmatch(line); m != nil {
			name, arch = m[1], m[2]
			if _, ok := kernels[name]; !ok {
				return nil, nil, fmt.Errorf("kernel %s is not in the PTX", name)
			}
		} else if m := spills.FindStringSubmatch(line); m != nil && known {
			set(k.Spills, number(m[1])+number(m[2]))
		} else if m := registers.FindStringSubmatch(line); m != nil && known {
			set(k.Registers, number(m[1]))
		} else if lostSpeed.MatchString(line) {
			return nil, nil, fmt.Errorf("ptxas: %s", line)
		} else if !strings.HasPrefix(line, "ptxas info") {
			warnings = append(warnings, line)
		}
	}
	return kernels, warnings, nil
}

// number is the value of digits.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic(err) // a match of \d+ that is not a small number
	}
	return n
}
