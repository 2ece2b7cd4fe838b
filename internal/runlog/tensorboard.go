package runlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

// TensorBoardFolder is the folder of the files for TensorBoard in a run folder.
const TensorBoardFolder = "tensorboard"

// eventFilePrefix begins the name of an event file. The time in seconds follows, because TensorBoard reads files in the
// order of names.
const eventFilePrefix = "events.out.tfevents."

// Fields of the messages Event, SessionLog, Summary and Summary.Value, of tensorboard/compat/proto/event.proto and
// summary.proto.
const (
	eventWallTime    protowire.Number = 1
	eventStep        protowire.Number = 2
	eventFileVersion protowire.Number = 3
	eventSummary     protowire.Number = 5
	eventSessionLog  protowire.Number = 7

	sessionLogStatus protowire.Number = 1

	summaryValue protowire.Number = 1

	valueTag    protowire.Number = 1
	valueSimple protowire.Number = 2
)

// sessionStart is SessionLog.START.
const sessionStart = 1

// eventFileHead returns the first records of an event file: the version of the format, and the start of a session at
// step next. When TensorBoard reads a second start, it drops the points of that step and later ones from before.
func eventFileHead(next int, at time.Time) []byte {
	version := protowire.AppendTag(eventMessage(0, at), eventFileVersion, protowire.BytesType)
	version = protowire.AppendString(version, "brain.Event:2")

	session := protowire.AppendTag(nil, sessionLogStatus, protowire.VarintType)
	session = protowire.AppendVarint(session, sessionStart)
	start := protowire.AppendTag(eventMessage(next, at), eventSessionLog, protowire.BytesType)
	start = protowire.AppendBytes(start, session)
	return appendRecord(appendRecord(nil, version), start)
}

// scalarRecord returns the record of the numbers of a step, sorted by name.
func scalarRecord(step int, at time.Time, values map[string]float64) []byte {
	var summary []byte
	for _, tag := range slices.Sorted(maps.Keys(values)) {
		value := protowire.AppendString(protowire.AppendTag(nil, valueTag, protowire.BytesType), tag)
		value = protowire.AppendTag(value, valueSimple, protowire.Fixed32Type)
		value = protowire.AppendFixed32(value, math.Float32bits(float32(values[tag])))
		summary = protowire.AppendBytes(protowire.AppendTag(summary, summaryValue, protowire.BytesType), value)
	}
	event := protowire.AppendTag(eventMessage(step, at), eventSummary, protowire.BytesType)
	return appendRecord(nil, protowire.AppendBytes(event, summary))
}

// eventMessage returns an Event without content.
func eventMessage(step int, at time.Time) []byte {
	seconds := float64(at.UnixMicro()) / 1e6
	b := protowire.AppendTag(nil, eventWallTime, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(seconds))
	b = protowire.AppendTag(b, eventStep, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(step))
}

// appendRecord appends a TFRecord: the length of data, its checksum, data, its checksum, all little endian.
func appendRecord(b, data []byte) []byte {
	start := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	b = binary.LittleEndian.AppendUint32(b, maskedChecksum(b[start:]))
	b = append(b, data...)
	return binary.LittleEndian.AppendUint32(b, maskedChecksum(data))
}

// maskedChecksum returns the CRC-32C of b, rotated and with a constant added, as TFRecord has it.
func maskedChecksum(b []byte) uint32 {
	c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}

// newEventFile returns the path of a new event file that TensorBoard reads after the existing ones.
func newEventFile(dir string, now time.Time) (string, error) {
	entries, err := files.ReadDir(filepath.Join(dir, TensorBoardFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	seconds := now.Unix()
	for _, e := range entries {
		rest, _ := strings.CutPrefix(e.Name(), eventFilePrefix)
		// a start in the same second, or the clock was set back
		if n, err := strconv.ParseInt(rest, 10, 64); err == nil && n >= seconds {
			seconds = n + 1
		}
	}
	return filepath.Join(dir, TensorBoardFolder, fmt.Sprintf("%s%010d", eventFilePrefix, seconds)), nil
}
