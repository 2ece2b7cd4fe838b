//go:build !unix

package dist

import "os/exec"

func ownGroup(*exec.Cmd) {}

func (p *process) interrupt() { p.terminate() }
func (p *process) terminate() { _ = p.Process.Kill() }
