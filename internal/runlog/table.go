package runlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// columns are the columns of steps.csv.
const columns = "step,time,tokens,loss,lr,grad_norm,tokens_per_second,held_out_loss,held_out_bits_per_byte,held_out_perplexity"

// digits is the number of significant digits in the table.
const digits = 7

// rounded returns v rounded as in the table.
func rounded(v float64) float64 {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', digits, 64), 64) // MaxFloat64 is rounded to Inf, with an error
	return v
}

// row is a step in the table.
type row struct {
	Step
	heldOut     float64 // loss after the step, in nats a token; 0: not measured
	onlyHeldOut bool    // the step itself is not recorded, as with number 0: only Number and Time of Step are set
}

// table returns the rows as CSV. A field is empty if its number is not known.
func table(rows []row, o Options) []byte {
	b := append(make([]byte, 0, 100*(len(rows)+1)), columns+"\n"...)
	number := func(v float64) { b = strconv.AppendFloat(append(b, ','), v, 'g', digits, 64) }
	for _, r := range rows {
		b = strconv.AppendInt(b, int64(r.Number), 10)
		b = r.Time.UTC().AppendFormat(append(b, ','), timeFormat)
		if r.onlyHeldOut {
			b = append(b, ",,,,,"...)
		} else {
			b = strconv.AppendInt(append(b, ','), r.Tokens, 10)
			number(r.Loss)
			number(r.LR)
			number(r.GradNorm)
			number(r.TokensPerSec)
		}
		if r.heldOut == 0 {
			b = append(b, ",,,\n"...)
			continue
		}
		number(r.heldOut)
		loss := rounded(r.heldOut) // so that a table that was read is written with the same bytes
		if b = append(b, ','); o.BytesPerToken > 0 {
			b = strconv.AppendFloat(b, bitsPerByte(loss, o.BytesPerToken), 'g', digits, 64)
		}
		if b = append(b, ','); !o.RelativeError {
			b = strconv.AppendFloat(b, math.Exp(loss), 'g', digits, 64)
		}
		b = append(b, '\n')
	}
	return b
}

// maxRow bounds a line of a table in bytes. Those of a run have at most 250.
const maxRow = 1 << 10

// readTable returns the rows of a table up to the step last, and the number of later ones. An empty text has none. With
// an error it returns the rows before the error. It reads line by line: a table may be damaged, and larger than memory.
func readTable(r io.Reader, last int) (rows []row, later int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, maxRow), maxRow)
	before := -1 // the step of the line before
	n := 0
	for ; lines.Scan(); n++ {
		if n == 0 {
			if head := lines.Text(); head != columns {
				return nil, 0, fmt.Errorf("columns %s, want %s", quote.Text(head), columns)
			}
			continue
		}
		next, err := parseRow(strings.Split(lines.Text(), ","))
		if err == nil && next.Number <= before {
			err = fmt.Errorf("step %d after step %d", next.Number, before)
		}
		if err != nil {
			return rows, later, fmt.Errorf("line %d: %w", n+1, err)
		}
		if before = next.Number; next.Number > last {
			later++
		} else {
			rows = append(rows, next)
		}
	}
	if err = lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("line %d has %d bytes or more", n+1, maxRow)
	}
	return rows, later, err
}

// parseRow reads the fields of a row. It ignores bits a byte and perplexity, which follow from the held-out loss.
func parseRow(fields []string) (r row, err error) {
	if len(fields) != strings.Count(columns, ",")+1 {
		return r, errors.New("wrong number of fields")
	}
	if r.Number, err = strconv.Atoi(fields[0]); err == nil && r.Number < 0 {
		err = strconv.ErrRange
	}
	if err == nil {
		r.Time, err = time.Parse(timeFormat, fields[1])
	}
	if r.onlyHeldOut = fields[3] == ""; err == nil && !r.onlyHeldOut {
		r.Tokens, err = strconv.ParseInt(fields[2], 10, 64)
		for i, to := range []*float64{&r.Loss, &r.LR, &r.GradNorm, &r.TokensPerSec} {
			if err == nil {
				*to, err = strconv.ParseFloat(fields[3+i], 64)
			}
		}
	}
	if err == nil && fields[7] != "" {
		r.heldOut, err = strconv.ParseFloat(fields[7], 64)
	}
	return r, quote.Error(err)
}
