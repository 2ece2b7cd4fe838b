package graph

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Policy is what a user wants of the choice of implementations. The zero value takes the best that the backend has.
type Policy struct {
	// Strict makes a fallback an error of NewMachine: an op that would run by other than the first implementation offered
	// for it, and, where the device's memory is not the host's, one that would run on the host.
	Strict bool
	// TF32 lets matrix products of float32 on a GPU round their operands to TF32, 10 bits after the point: several times as
	// fast, and no longer within 1e-5 of the exact result.
	TF32 bool
	// Unfused lists rules of Fusions that are switched off. UnfusedAll, alone, switches all off.
	Unfused []string
}

// UnfusedAll in Policy.Unfused stands for all rules.
const UnfusedAll = "all"

// Fusions returns the names of the rules by which a plan has one step for several: see Plan for what they did.
func Fusions() (names []string) {
	for _, f := range fusions() {
		names = append(names, f.name)
	}
	return names
}

func (p Policy) unfused(rule string) bool {
	return slices.Contains(p.Unfused, rule) || slices.Contains(p.Unfused, UnfusedAll)
}

func (p Policy) check() error {
	for _, name := range p.Unfused {
		if name != UnfusedAll && !slices.Contains(Fusions(), name) {
			return fmt.Errorf("policy: no fusion %q to be switched off, want %q or some of %q", name, UnfusedAll, Fusions())
		}
	}
	return nil
}

// PolicyFromEnv returns the policy of the environment, which machines without WithPolicy have: NSA_STRICT and NSA_TF32,
// booleans as strconv.ParseBool reads them, and NSA_UNFUSED, names with commas between. Variables that are empty or not set
// leave the zero value.
func PolicyFromEnv() (Policy, error) {
	var p Policy
	err := errors.Join(boolFromEnv("NSA_STRICT", &p.Strict), boolFromEnv("NSA_TF32", &p.TF32))
	if s := os.Getenv("NSA_UNFUSED"); s != "" {
		p.Unfused = strings.Split(s, ",")
	}
	if bad := p.check(); bad != nil {
		err = errors.Join(err, fmt.Errorf("graph: NSA_UNFUSED: %w", bad))
	}
	return p, err
}

func boolFromEnv(name string, to *bool) error {
	s := os.Getenv(name)
	if s == "" {
		return nil
	}
	v, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("graph: %s is %q, want a boolean", name, s)
	}
	*to = v
	return nil
}
