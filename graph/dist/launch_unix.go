//go:build unix

package dist

import (
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's Ctrl-C from a rank: it gets the interrupt of Launch alone.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func (p *process) interrupt() { _ = p.Process.Signal(syscall.SIGINT) }
func (p *process) terminate() { _ = p.Process.Signal(syscall.SIGTERM) }
