//go:build unix

package dist

import (
	"os/exec"
	"os/signal"
	"syscall"
)

// ownGroup keeps the terminal's Ctrl-C from a rank: it gets the interrupt of Launch alone.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// interrupt sends SIGINT or, if this process ignores that and its children so do, SIGTERM.
func (p *process) interrupt() {
	if signal.Ignored(syscall.SIGINT) {
		p.terminate()
	} else {
		_ = p.Process.Signal(syscall.SIGINT)
	}
}

func (p *process) terminate() { _ = p.Process.Signal(syscall.SIGTERM) }
