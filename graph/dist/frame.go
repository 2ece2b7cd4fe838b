package dist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// kind is what a frame says.
type kind byte

const (
	alive  kind = iota + 1 // a sign of life; number is how many operations the rank has begun to watch
	data                   // a rank's part of AllGather; number counts the calls
	result                 // all parts
	failed                 // the job has failed: what is the error
	leaves                 // the rank has closed its Group
)

// frame is a message. On the wire: kind, number (8 bytes), lengths of what (2) and content (8), what, content.
type frame struct {
	kind    kind
	number  uint64
	what    string
	content []byte
}

const (
	headerBytes = 1 + 8 + 2 + 8
	maxContent  = 1 << 40
	chunk       = 1 << 20
)

var errFrame = errors.New("not a message of a rank")

func (f *frame) header() []byte {
	h := make([]byte, 0, headerBytes+len(f.what))
	h = append(h, byte(f.kind))
	h = binary.BigEndian.AppendUint64(h, f.number)
	h = binary.BigEndian.AppendUint16(h, uint16(len(f.what)))
	h = binary.BigEndian.AppendUint64(h, uint64(len(f.content)))
	return append(h, f.what...)
}

// readFrame reads a frame. The memory that it takes grows with what arrives, not with what a header says.
func readFrame(r io.Reader) (f frame, err error) {
	var h [headerBytes]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return f, err
	}
	f.kind, f.number = kind(h[0]), binary.BigEndian.Uint64(h[1:])
	n := binary.BigEndian.Uint64(h[11:])
	if f.kind < alive || f.kind > leaves || n > maxContent {
		return f, errFrame
	}
	var b bytes.Buffer
	what := int64(binary.BigEndian.Uint16(h[9:]))
	if _, err := io.CopyN(&b, r, what+int64(n)); err == io.EOF {
		return f, io.ErrUnexpectedEOF
	} else if err != nil {
		return f, err
	}
	f.what, f.content = string(b.Next(int(what))), b.Bytes()
	return f, nil
}

// link is the connection to another rank.
type link struct {
	conn    net.Conn
	silence time.Duration
	rank    int // at the other end
	writing sync.Mutex

	heard   atomic.Int64 // time of the last byte, in Unix nanoseconds
	begun   atomic.Uint64
	inbox   chan frame    // data or result
	left    chan struct{} // closed when the other end leaves
	leaving sync.Once
}

func newLink(conn net.Conn, rank int, silence time.Duration) *link {
	l := &link{conn: conn, silence: silence, rank: rank, inbox: make(chan frame, 1), left: make(chan struct{})}
	l.heard.Store(time.Now().UnixNano())
	return l
}

// Read reads from the other end, which must not be silent for long.
func (l *link) Read(p []byte) (int, error) {
	if err := l.conn.SetReadDeadline(time.Now().Add(l.silence)); err != nil {
		return 0, err
	}
	n, err := l.conn.Read(p)
	if n > 0 {
		l.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

func (l *link) send(f frame) error {
	if len(f.what) > 1<<16-1 {
		f.what = f.what[:1<<16-1]
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	for _, part := range [][]byte{f.header(), f.content} {
		for len(part) > 0 {
			n := min(chunk, len(part))
			if err := l.conn.SetWriteDeadline(time.Now().Add(l.silence)); err != nil {
				return err
			}
			if _, err := l.conn.Write(part[:n]); err != nil {
				return err
			}
			part = part[n:]
		}
	}
	return nil
}

// lost says why the connection has ended.
func (l *link) lost(err error) error {
	if t := (net.Error)(nil); errors.As(err, &t) && t.Timeout() {
		return fmt.Errorf("rank %d has been silent for %v", l.rank, l.silence)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("rank %d has ended", l.rank)
	}
	return fmt.Errorf("rank %d has ended: %w", l.rank, err)
}
