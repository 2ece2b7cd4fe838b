package testutil

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// RequirePython skips the test unless python3 is on the path and has the modules.
func RequirePython(t testing.TB, modules ...string) {
	t.Helper()
	if out, err := exec.Command("python3", "-c", "import "+strings.Join(modules, ", ")).CombinedOutput(); err != nil {
		t.Skipf("no python3 with %s: %v %s", strings.Join(modules, ", "), err, bytes.TrimSpace(out))
	}
}
