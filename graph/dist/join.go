package dist

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Join makes this process a rank of a job: rank 0 listens, the others call it, until all are there. After an error it
// has closed what it opened. ctx is for joining alone.
func Join(ctx context.Context, o Options) (_ *Group, err error) {
	defer fault.Name(&err, "dist", fmt.Sprintf("rank %d of %d", o.Rank, o.Size))
	if err := o.check(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, o.FirstTimeout)
	defer cancel()
	listener, err := o.inherit()
	if err != nil {
		return nil, err
	}
	if o.Size == 1 {
		return newGroup(o, nil), nil
	}
	if o.Rank > 0 {
		l, err := o.call(ctx)
		if err != nil {
			return nil, err
		}
		return newGroup(o, []*link{l}), nil
	}
	if listener == nil {
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", o.Addr); err != nil {
			return nil, fmt.Errorf("MASTER_ADDR and MASTER_PORT must be an address of rank 0's host and a free port: %w", err)
		}
	}
	links, err := o.accept(ctx, listener)
	if err != nil {
		return nil, err
	}
	return newGroup(o, links), nil
}

// greeting is what the two ends of a new connection tell each other: a random number, and the rank and the number of
// ranks of the one that calls. Then each proves that it knows the secret, and rank 0 accepts or says why not.
type greeting struct {
	Magic      [8]byte
	Nonce      [32]byte
	Rank, Size uint32
}

// magic ends with the version of the protocol.
var magic = [8]byte{'N', 'S', 'A', 'd', 'i', 's', 't', 1}

const (
	proofBytes  = sha256.Size
	answerBytes = 256
	// how long an unknown process may take to prove itself, and how many may try at once
	strangerTime  = 5 * time.Second
	strangerCount = 64
)

// proof is what only a process that knows the secret can compute.
func (o *Options) proof(end string, mine, theirs greeting) []byte {
	h := hmac.New(sha256.New, o.Secret)
	h.Write([]byte(end))
	_ = binary.Write(h, binary.BigEndian, []greeting{mine, theirs})
	return h.Sum(nil)
}

func (o *Options) greet() (g greeting) {
	g = greeting{Magic: magic, Rank: uint32(o.Rank), Size: uint32(o.Size)}
	_, _ = rand.Read(g.Nonce[:]) // it never fails
	return g
}

// exchange sends this end's greeting and proof, and checks those of the other one. Rank 0 proves itself last.
func (o *Options) exchange(conn net.Conn) (theirs greeting, err error) {
	mine, name, other := o.greet(), "rank", "rank 0"
	if o.Rank == 0 {
		name, other = other, name
	}
	if err := binary.Write(conn, binary.BigEndian, mine); err != nil {
		return theirs, err
	}
	if err := binary.Read(conn, binary.BigEndian, &theirs); err != nil {
		return theirs, err
	}
	if theirs.Magic != magic {
		return theirs, fmt.Errorf("%w of this version", errFrame)
	}
	prove := func() error { _, err := conn.Write(o.proof(name, mine, theirs)); return err }
	if o.Rank > 0 {
		if err := prove(); err != nil {
			return theirs, err
		}
	}
	got := make([]byte, proofBytes)
	if _, err := io.ReadFull(conn, got); err != nil {
		return theirs, fmt.Errorf("%w: %w", errSecret, err)
	}
	if !hmac.Equal(got, o.proof(other, theirs, mine)) {
		return theirs, errSecret
	}
	if o.Rank == 0 {
		return theirs, prove()
	}
	return theirs, nil
}

var errSecret = errors.New("the other end has another secret")

// call connects to rank 0 and tries again while nothing listens there.
func (o *Options) call(ctx context.Context) (*link, error) {
	var last error
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", o.Addr)
		if err == nil {
			l, err := o.introduce(ctx, conn)
			if err == nil {
				return l, nil
			}
			last = errors.Join(err, conn.Close())
			if refused := (*refusal)(nil); errors.As(err, &refused) || errors.Is(err, errSecret) || errors.Is(err, errFrame) {
				return nil, last
			}
		} else if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("rank 0 does not answer at %s: %w (%w)", o.Addr, last, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// refusal is the answer of a rank 0 that does not accept a rank.
type refusal struct{ text string }

func (r *refusal) Error() string { return "rank 0: " + r.text }

// introduce makes conn the link to rank 0. That answers when all ranks have come.
func (o *Options) introduce(ctx context.Context, conn net.Conn) (*link, error) {
	_ = conn.SetDeadline(time.Now().Add(2 * strangerTime))
	if _, err := o.exchange(conn); err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end.Add(strangerTime)) // rank 0 knows first who is missing
	}
	answer := make([]byte, answerBytes)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, fmt.Errorf("rank 0 has ended: %w", err)
	}
	if text := string(bytes.TrimRight(answer, "\x00")); text != "" {
		return nil, &refusal{text}
	}
	return newLink(conn, 0, o.Silence), conn.SetDeadline(time.Time{})
}

// accept waits for all other ranks.
func (o *Options) accept(ctx context.Context, listener net.Listener) (_ []*link, err error) {
	type caller struct {
		conn net.Conn
		greeting
		err error
	}
	callers, strangers := make(chan caller), make(chan struct{}, strangerCount)
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	links := make([]*link, o.Size-1)
	answer := func(conn net.Conn, text string) error {
		b := make([]byte, answerBytes)
		copy(b, text)
		_, err := conn.Write(b)
		return err
	}
	defer func() {
		cancel()
		_ = listener.Close()
		work.Wait()
		for _, l := range links {
			if l == nil {
				continue
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if e := errors.Join(answer(l.conn, text), l.conn.SetDeadline(time.Time{})); err == nil && e != nil {
				err = l.lost(e)
			}
			if err != nil {
				_ = l.conn.Close()
			}
		}
	}()
	work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			select {
			case strangers <- struct{}{}:
			default:
				_ = conn.Close()
				continue
			}
			work.Go(func() {
				defer func() { <-strangers }()
				_ = conn.SetDeadline(time.Now().Add(strangerTime))
				theirs, err := o.exchange(conn)
				select {
				case callers <- caller{conn, theirs, err}:
				case <-ctx.Done():
					_ = conn.Close()
				}
			})
		}
	})
	other := "" // what else has come
	for slices.Contains(links, nil) {
		select {
		case <-ctx.Done():
			var missing []int
			for i, l := range links {
				if l == nil {
					missing = append(missing, i+1)
				}
			}
			return nil, fmt.Errorf("ranks %d have not come within %v%s: %w", missing, o.FirstTimeout, other, context.Cause(ctx))
		case c := <-callers:
			if c.err != nil { // it may be anyone: the job goes on
				if errors.Is(c.err, errSecret) {
					other = "; a process with another secret has"
				}
				_ = c.conn.Close()
				continue
			}
			text := ""
			switch rank := int(c.Rank); {
			case int(c.Size) != o.Size:
				text = fmt.Sprintf("rank %d is of %d ranks, rank 0 of %d", rank, c.Size, o.Size)
			case rank < 1 || rank >= o.Size:
				text = fmt.Sprintf("rank %d of %d ranks", rank, o.Size)
			case links[rank-1] != nil:
				text = fmt.Sprintf("rank %d has come twice", rank)
			default:
				links[rank-1] = newLink(c.conn, rank, o.Silence)
				continue
			}
			_ = answer(c.conn, text)
			_ = c.conn.Close()
			return nil, errors.New(text)
		}
	}
	return links, nil
}
