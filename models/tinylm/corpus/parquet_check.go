package corpus

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
)

const (
	maxFooter  = 64 << 20 // bytes
	maxSchema  = 10_000   // columns
	maxNesting = 32       // of Thrift

	footerMagic  = "PAR1"
	footerLength = 8 // bytes: length of the footer, magic
)

// checkFooter checks the footer of a Parquet file of the given size.
func checkFooter(in io.ReaderAt, size int64) (err error) {
	defer recoverParquet(&err)
	var end [footerLength]byte
	if size < int64(len(footerMagic)+footerLength) {
		return fmt.Errorf("parquet: %d bytes are too few for a footer", size)
	}
	if _, err := in.ReadAt(end[:], size-footerLength); err != nil {
		return unexpected(err)
	}
	n := int64(binary.LittleEndian.Uint32(end[:]))
	if string(end[4:]) != footerMagic {
		return fmt.Errorf("parquet: ends with %q, want %q: the file is truncated, encrypted or of another kind",
			end[4:], footerMagic)
	}
	if n > size-footerLength || n > maxFooter {
		return fmt.Errorf("parquet: footer of %d bytes, want at most %d", n, min(size-footerLength, maxFooter))
	}
	b := make([]byte, n)
	if _, err := in.ReadAt(b, size-footerLength-n); err != nil {
		return unexpected(err)
	}
	if _, err := checkStruct(b); err != nil {
		return fmt.Errorf("parquet: footer: %w", err)
	}
	var meta format.FileMetaData
	if err := thrift.NewDecoder(new(thrift.CompactProtocol).NewReaderFromBytes(b)).Decode(&meta); err != nil {
		return fmt.Errorf("parquet: footer: %w", err)
	}
	if meta.EncryptionAlgorithm.Value != nil {
		return errors.New("parquet: the file is encrypted")
	}
	if len(meta.Schema) > maxSchema {
		return fmt.Errorf("parquet: %d columns, want at most %d", len(meta.Schema), maxSchema)
	}
	return nil
}

// checkStruct checks that no list of a Thrift struct is longer than the bytes that follow. It returns the length of the
// struct.
func checkStruct(b []byte) (int, error) {
	c := structCheck{new(thrift.CompactProtocol).NewReaderFromBytes(b), len(b)}
	err := c.value(thrift.STRUCT, 0)
	return c.r.BytesRead(), err
}

type structCheck struct {
	r thrift.Reader
	n int
}

func (c structCheck) value(t thrift.Type, depth int) (err error) {
	if depth > maxNesting {
		return fmt.Errorf("nested more than %d times", maxNesting)
	}
	switch t {
	case thrift.TRUE, thrift.FALSE:
	case thrift.I8:
		_, err = c.r.ReadInt8()
	case thrift.I16, thrift.I32, thrift.I64: // of as many bytes as needed
		_, err = c.r.ReadInt64()
	case thrift.DOUBLE:
		_, err = c.r.ReadFloat64()
	case thrift.BINARY:
		_, err = c.r.ReadBytes()
	case thrift.LIST, thrift.SET:
		err = c.list(depth)
	case thrift.STRUCT:
		for {
			f, err := c.r.ReadField()
			if err != nil || f.Type == thrift.STOP {
				return err
			}
			if err := c.value(f.Type, depth+1); err != nil {
				return err
			}
		}
	default: // Parquet has no maps
		err = fmt.Errorf("a value of type %v", t)
	}
	return err
}

func (c structCheck) list(depth int) error {
	l, err := c.r.ReadList()
	if err != nil {
		return err
	}
	if left := c.n - c.r.BytesRead(); int64(l.Size) < 0 || int64(l.Size) > int64(left) {
		return fmt.Errorf("a list of %d values in %d bytes", l.Size, left)
	}
	for range l.Size {
		if l.Type == thrift.TRUE || l.Type == thrift.FALSE { // a byte in a list, nothing in a field
			_, err = c.r.ReadInt8()
		} else {
			err = c.value(l.Type, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
