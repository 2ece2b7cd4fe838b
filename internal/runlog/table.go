package runlog

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
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
func table(rows []row, bytesPerToken float64) []byte {
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
		if bytesPerToken > 0 {
			number(bitsPerByte(loss, bytesPerToken))
		} else {
			b = append(b, ',')
		}
		number(math.Exp(loss))
		b = append(b, '\n')
	}
	return b
}

// parseTable returns the rows of a table, none for an empty text. With an error it returns the rows before the error.
func parseTable(text []byte) ([]row, error) {
	if len(text) == 0 {
		return nil, nil
	}
	r := csv.NewReader(bytes.NewReader(text))
	r.ReuseRecord = true
	head, err := r.Read()
	if err != nil {
		return nil, err
	}
	want := strings.Split(columns, ",")
	if !slices.Equal(head, want) {
		return nil, fmt.Errorf("columns %s, want %s", strings.Join(head, ","), columns)
	}
	var rows []row
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
		next, err := parseRow(fields)
		if n := len(rows); err == nil && n > 0 && next.Number <= rows[n-1].Number {
			err = fmt.Errorf("step %d after step %d", next.Number, rows[n-1].Number)
		}
		if err != nil {
			line, _ := r.FieldPos(0)
			return rows, fmt.Errorf("line %d: %w", line, err)
		}
		rows = append(rows, next)
	}
}

// parseRow reads the fields of a row. It ignores bits a byte and perplexity, which follow from the held-out loss.
func parseRow(fields []string) (r row, err error) {
	if r.Number, err = strconv.Atoi(fields[0]); err != nil {
		return r, err
	}
	if r.Time, err = time.Parse(timeFormat, fields[1]); err != nil {
		return r, err
	}
	if r.onlyHeldOut = fields[3] == ""; !r.onlyHeldOut {
		if r.Tokens, err = strconv.ParseInt(fields[2], 10, 64); err != nil {
			return r, err
		}
		for i, to := range []*float64{&r.Loss, &r.LR, &r.GradNorm, &r.TokensPerSec} {
			if *to, err = strconv.ParseFloat(fields[3+i], 64); err != nil {
				return r, err
			}
		}
	}
	if fields[7] != "" {
		r.heldOut, err = strconv.ParseFloat(fields[7], 64)
	}
	return r, err
}
