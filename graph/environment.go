package graph

import (
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// variable is an environment variable of this module. docs/environment.md explains it.
type variable struct {
	name string
	set  func(p *Policy, value string) error // nil: another package reads the variable, and any value is right
}

// variables lists all variables. A later one overrides an earlier one.
func variables() []variable {
	return []variable{
		{"NSA_STRICT", boolean(func(p *Policy, v bool) { p.Strict = v })},
		{"NSA_TF32", boolean(func(p *Policy, v bool) { p.TF32 = v })},
		{"NSA_OWN_PRODUCTS", boolean(func(p *Policy, v bool) { p.OwnProducts = v })},
		{"NSA_UNFUSED", func(p *Policy, value string) error {
			names := strings.Split(value, ",")
			if err := (Policy{Unfused: names}).check(); err != nil {
				return fmt.Errorf("is %q: %w", value, err)
			}
			p.Unfused = names
			return nil
		}},
		{"NSA_USE_FA2", boolean(func(p *Policy, v bool) {
			p.Window.General, p.Compressed.General,
				p.Selected.General = !v, !v, !v
		})},
		{"NSA_USE_FA2_WIN", boolean(func(p *Policy, v bool) { p.Window.General = !v })},
		{"NSA_USE_FA2_CMP", boolean(func(p *Policy, v bool) { p.Compressed.General = !v })},
		{"NSA_FA2_MIN_LEN_WIN", length(func(p *Policy) *BranchPolicy { return &p.Window })},
		{"NSA_FA2_MIN_LEN_CMP", length(func(p *Policy) *BranchPolicy { return &p.Compressed })},
		{"NSA_WIN_FORCE_DENSE", boolean(func(p *Policy, v bool) { p.Window.General = p.Window.General || v })},
		{"NSA_FA2_PREF_FP16", boolean(func(p *Policy, v bool) { p.PreferFP16 = v })},
		{"NSA_FA2_FORCE_VARLEN", refusePacked},
		{"NSA_SDPA_AUDIT", boolean(func(p *Policy, v bool) { p.Audit = v })},
		{"NSA_DEBUG_TIMING", boolean(func(p *Policy, v bool) { p.Timing = v })},
		{"NSA_DDP_BUCKET_MB", func(p *Policy, value string) error {
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > 1<<20 {
				return fmt.Errorf("is %q, want a number of MiB, at least 1", value)
			}
			p.BucketBytes = n << 20
			return nil
		}},
		{"NSA_DDP_COMPRESS", func(p *Policy, value string) error {
			if value != "bf16" && value != "off" {
				return fmt.Errorf("is %q, want bf16 or off", value)
			}
			p.CompressGrads = value == "bf16"
			return nil
		}},
		{"NSA_DDP_TIMEOUT", duration},
		{"NSA_DDP_FIRST_TIMEOUT", duration},
		{"NSA_DDP_SECRET", nil},
		{"NSA_DDP_PARENT", nil},
		{"NSA_CPU", func(_ *Policy, value string) error {
			if err := cpu.LevelError(); err != nil { // the level that was read when the program started
				return fmt.Errorf("is %q: %w", value, err)
			}
			return nil
		}},
		{"NSA_CUDA_LIBS", nil},
		{"NSA_REQUIRE_GPU", boolean(nil)},
		{"NSA_TEST_FA2", boolean(nil)},
		{"NSA_TEST_FULL", boolean(nil)},
		{"NSA_TEST_GGUF", nil},
		{"NSA_TEST_GOLDENS", nil},
		{"NSA_TEST_IMPLEMENTATIONS", nil},
		{"NSA_TEST_REFERENCE", nil},
		{"NSA_TEST_CURVES", nil},
		{"NSA_TEST_PICTURES", nil},
		{"NSA_TEST_RANKS", nil},
		{"NSA_TEST_MUTATIONS", func(_ *Policy, value string) error {
			if n, err := strconv.Atoi(value); err != nil || n < 1 {
				return fmt.Errorf("is %q, want a number of at least 1", value)
			}
			return nil
		}},
		{"NSA_TIME", nil},
		{"NSA_CASES", func(_ *Policy, value string) error {
			if _, err := regexp.Compile(value); err != nil {
				return fmt.Errorf("is %q: %w", value, err)
			}
			return nil
		}},
		{"NSA_SANITIZER", boolean(nil)},
	}
}

// boolean returns the function that reads a boolean; set may be nil.
func boolean(set func(p *Policy, v bool)) func(*Policy, string) error {
	return func(p *Policy, value string) error {
		v, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("is %q, want a boolean", value)
		}
		if set != nil {
			set(p, v)
		}
		return nil
	}
}

// duration checks a duration that package dist reads.
func duration(_ *Policy, value string) error {
	if d, err := time.ParseDuration(value); err != nil || d <= 0 {
		return fmt.Errorf("is %q, want a duration such as 30s", value)
	}
	return nil
}

// refusePacked reads a boolean and refuses true, which asks for packed documents in a graph without their boundaries.
func refusePacked(p *Policy, value string) error {
	packed := false
	if err := boolean(func(_ *Policy, v bool) { packed = v })(p, value); err != nil || !packed {
		return err
	}
	return fmt.Errorf("is %q: %w", value, Refuse(ReasonDocuments,
		"a machine does not put documents into a graph: give its ops cu_seqlens (ops.WithDocuments)"))
}

// length returns the function that reads the least number of keys of a branch; -1 means never.
func length(branch func(*Policy) *BranchPolicy) func(*Policy, string) error {
	return func(p *Policy, value string) error {
		n, err := strconv.Atoi(value)
		switch {
		case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(value, "-"):
			n = math.MaxInt
		case err != nil || n < -1:
			return fmt.Errorf("is %q, want a number of keys, or -1 for never", value)
		case n == -1:
			n = math.MaxInt
		}
		branch(p).MinKeys = max(1, n)
		return nil
	}
}

// PolicyFromEnv returns the policy that the environment sets; machines without WithPolicy use it. docs/environment.md
// lists the variables. A variable that is empty or not set changes nothing. A wrong value is an error, and so is any
// other variable whose name begins with NSA_; the policy still has the values of the right variables.
func PolicyFromEnv() (Policy, error) {
	var p Policy
	var errs []error
	known := variables()
	for _, v := range known {
		value := os.Getenv(v.name)
		if value == "" || v.set == nil {
			continue
		}
		if err := v.set(&p, value); err != nil {
			errs = append(errs, fmt.Errorf("graph: %s %w", v.name, err))
		}
	}
	for _, s := range os.Environ() {
		name, value, _ := strings.Cut(s, "=")
		if strings.HasPrefix(name, "NSA_") && value != "" && !slices.ContainsFunc(known,
			func(v variable) bool { return v.name == name }) {
			errs = append(errs, fmt.Errorf("graph: unknown environment variable %s; did you mean %s?", name,
				nearest(name, known)))
		}
	}
	return p, errors.Join(errs...)
}

// nearest returns the known name with the least edit distance to name.
func nearest(name string, known []variable) string {
	best, least := "", math.MaxInt
	for _, v := range known {
		if n := levenshtein.ComputeDistance(name, v.name); n < least {
			best, least = v.name, n
		}
	}
	return best
}
