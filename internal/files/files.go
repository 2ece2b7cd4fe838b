// Package files writes whole files: a kill or a full disk leaves the old file or the new one.
package files

import (
	"fmt"

	"github.com/moby/sys/atomicwriter"
)

// Write replaces the file of a path. Its errors name the path.
func Write(path string, content []byte) error {
	if err := atomicwriter.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
