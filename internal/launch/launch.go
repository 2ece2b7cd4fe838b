// Package launch makes processes of a program the ranks of a job: one for each device that its flag -device names, or
// those that a launcher such as torchrun has started.
package launch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/internal/command"
)

// Ranks runs this program again with its own arguments, once for each device, if the value of -device names several and
// no launcher has started this process. launched reports whether it did so, and whatever is wrong before: fits says
// whether the program can run on so many ranks. See dist.Launch.
func Ranks(ctx context.Context, device string, fits func(ranks int) error) (launched bool, err error) {
	if _, child, err := dist.FromEnv(); child || err != nil {
		return false, nil // Join says what is wrong
	}
	list, err := devices(device)
	if err == nil && len(list) == 1 {
		return false, nil
	}
	if err == nil && list[0] != "cpu" {
		_, err = cuda.Count()
	}
	if err != nil {
		return true, flagError(device, err)
	}
	if err := fits(len(list)); err != nil {
		return true, err
	}
	var c dist.Command
	if list[0] == "cpu" { // the ranks share the cores
		c.Env = []string{fmt.Sprint("GOMAXPROCS=", max(1, runtime.GOMAXPROCS(0)/len(list)))}
	}
	return true, dist.Launch(ctx, len(list), c)
}

// Join makes this process a rank of the job that a launcher has started it for, or the only rank of one. It returns the
// name of its device, by the value of -device.
func Join(ctx context.Context, device string) (g *dist.Group, own string, err error) {
	o, launched, err := dist.FromEnv()
	if err != nil {
		return nil, "", err
	}
	if launched {
		own, err = deviceOf(device, o.LocalRank)
	} else {
		o.Size = 1
		own, err = onlyDevice(device)
	}
	if err != nil {
		return nil, "", flagError(device, err)
	}
	g, err = dist.Join(ctx, o)
	return g, own, err
}

func onlyDevice(name string) (string, error) {
	list, err := devices(name)
	if err == nil && len(list) > 1 {
		err = errors.New("several devices want a process each: see Launch")
	}
	if err != nil {
		return "", err
	}
	return list[0], nil
}

func flagError(device string, err error) error {
	return command.UsageError(command.Flag("device", device, err))
}

// devices returns the names of the devices that -device names, one for each rank.
func devices(name string) ([]string, error) {
	kind, which, _ := strings.Cut(name, ":")
	var list []string
	switch {
	case kind == "cuda" && which == "all":
		count, err := cuda.Count()
		if err != nil {
			return nil, err
		}
		for i := range count {
			list = append(list, fmt.Sprint("cuda:", i))
		}
	case kind == "cuda" && strings.Contains(which, ","):
		for number := range strings.SplitSeq(which, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(number))
			if err != nil || n < 0 {
				return nil, fmt.Errorf("%q is not the number of a GPU", number)
			}
			list = append(list, fmt.Sprint("cuda:", n))
		}
	case kind == "cpu" && which != "":
		n, err := strconv.Atoi(which)
		if err != nil || n < 1 || n > maxRanks {
			return nil, fmt.Errorf("want cpu:N, N ranks on the processor, 1 to %d", maxRanks)
		}
		list = slices.Repeat([]string{"cpu"}, n)
	default:
		list = []string{name}
	}
	if kind == "cuda" && len(slices.Compact(slices.Sorted(slices.Values(list)))) < len(list) {
		return nil, errors.New("names a GPU twice: a rank needs one of its own")
	}
	return list, nil
}

// maxRanks bounds the ranks on one processor.
const maxRanks = 64

// deviceOf returns the name of the device of a rank that a launcher has started as the given one of its host.
func deviceOf(name string, localRank int) (string, error) {
	switch name {
	case "cuda":
		return fmt.Sprint("cuda:", localRank), nil
	case "auto":
		if n, err := cuda.Count(); err != nil || n == 0 {
			return name, nil // the processor; cuda.Select logs why
		}
		return fmt.Sprint("cuda:", localRank), nil
	}
	list, err := devices(name)
	switch {
	case err != nil:
		return "", err
	case len(list) == 1:
		return list[0], nil
	case localRank >= len(list):
		return "", fmt.Errorf("names %d devices, and this host has a rank %d (from 0)", len(list), localRank)
	}
	return list[localRank], nil
}
