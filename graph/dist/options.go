package dist

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Options say how a process joins a job.
type Options struct {
	Rank, Size int
	LocalRank  int    // number of the process on its host: that of its device
	Addr       string // host:port at which rank 0 listens, on the interface of the host's address
	Secret     []byte // what all processes of the job know, and no other process

	// FirstTimeout is how long the others have time to join, and an operation may take until the first step has ended; 0
	// means 60 seconds. Timeout is how much longer than a mean step an operation may take afterwards; 0 means 30 seconds.
	// A rank that gives no sign of life for Silence has failed; 0 means 15 seconds.
	FirstTimeout, Timeout, Silence time.Duration

	inherited []int    // from Launch: the number of a pipe, whose end is that of the parent, and of rank 0's socket
	parent    *os.File // that pipe, open
}

// withDefaults returns o with its zero values replaced.
func (o Options) withDefaults() Options {
	o.FirstTimeout, o.Timeout = cmp.Or(o.FirstTimeout, 60*time.Second), cmp.Or(o.Timeout, 30*time.Second)
	o.Silence = cmp.Or(o.Silence, 15*time.Second)
	return o
}

func (o Options) check() error {
	if o.Size < 1 || o.Rank < 0 || o.Rank >= o.Size {
		return fmt.Errorf("rank %d of %d ranks", o.Rank, o.Size)
	}
	if o.FirstTimeout < 0 || o.Timeout < 0 || o.Silence < 0 {
		return errors.New("a timeout below 0")
	}
	if o.Size > 1 && len(o.inherited) < 2 {
		if _, _, err := net.SplitHostPort(o.Addr); err != nil {
			return fmt.Errorf("address of rank 0: %w", err)
		}
	}
	if o.Size > 1 && len(o.Secret) == 0 {
		return errors.New("no secret: set NSA_DDP_SECRET to the same random text on all ranks")
	}
	return nil
}

// FromEnv returns the options that a launcher has set in the environment, and whether there is one: RANK, WORLD_SIZE,
// LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them; SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID stand in
// for the first three. NSA_DDP_SECRET is the secret; without it, the launcher's job id is (TORCHELASTIC_RUN_ID,
// SLURM_JOB_ID), which keeps jobs apart but protects from no one who can guess it. NSA_DDP_TIMEOUT and
// NSA_DDP_FIRST_TIMEOUT set the timeouts.
//
// Where torchrun itself listens at MASTER_PORT, the port after it is used.
func FromEnv() (o Options, launched bool, err error) {
	var errs []error
	number := func(names ...string) (n int) {
		for _, name := range names {
			text := os.Getenv(name)
			if text == "" {
				continue
			}
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				errs = append(errs, fmt.Errorf("dist: %s is %q, want a number of at least 0", name, text))
			}
			return n
		}
		errs = append(errs, fmt.Errorf("dist: %s is not set", names[0]))
		return 0
	}
	if os.Getenv("WORLD_SIZE") == "" && (os.Getenv("SLURM_NTASKS") == "" || os.Getenv("MASTER_ADDR") == "") {
		return o, false, nil
	}
	o.Rank, o.Size = number("RANK", "SLURM_PROCID"), number("WORLD_SIZE", "SLURM_NTASKS")
	if o.Size > 1 {
		o.LocalRank = number("LOCAL_RANK", "SLURM_LOCALID")
		port := number("MASTER_PORT")
		if strings.EqualFold(os.Getenv("TORCHELASTIC_USE_AGENT_STORE"), "true") {
			port++
		}
		host := os.Getenv("MASTER_ADDR")
		if host == "" {
			errs = append(errs, errors.New("dist: MASTER_ADDR is not set"))
		}
		o.Addr = net.JoinHostPort(host, strconv.Itoa(port))
	}
	for name, d := range map[string]*time.Duration{
		"NSA_DDP_TIMEOUT": &o.Timeout, "NSA_DDP_FIRST_TIMEOUT": &o.FirstTimeout,
	} {
		if text := os.Getenv(name); text != "" {
			if *d, err = time.ParseDuration(text); err != nil || *d <= 0 {
				errs = append(errs, fmt.Errorf("dist: %s is %q, want a duration such as 30s", name, text))
			}
		}
	}
	o.Secret = []byte(cmp.Or(os.Getenv("NSA_DDP_SECRET"), os.Getenv("TORCHELASTIC_RUN_ID"), os.Getenv("SLURM_JOB_ID")))
	if files := os.Getenv("NSA_DDP_PARENT"); files != "" {
		for number := range strings.SplitSeq(files, ",") {
			fd, err := strconv.Atoi(number)
			if err != nil || fd < 3 {
				errs = append(errs, fmt.Errorf("dist: NSA_DDP_PARENT is %q, want numbers of open files", files))
				break
			}
			o.inherited = append(o.inherited, fd)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return o, true, err
	}
	if err := o.check(); err != nil {
		return o, true, fmt.Errorf("dist: environment: %w", err)
	}
	return o, true, nil
}

// inherit opens the files that Launch has given to this process: it returns the listener of rank 0, nil if there is none.
func (o *Options) inherit() (net.Listener, error) {
	if o.inherited == nil {
		return nil, nil
	}
	o.parent = os.NewFile(uintptr(o.inherited[0]), "parent")
	if len(o.inherited) < 2 {
		return nil, nil
	}
	f := os.NewFile(uintptr(o.inherited[1]), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("socket of the parent: %w", err)
	}
	return l, nil
}
