package main

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// A decoder reads YAML strictly: a field that nobody knows is an error, and so is one that is there twice. It collects
// errors, each with its line, and reads on.
type decoder struct{ errs []error }

func (d *decoder) failf(n *yaml.Node, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("line %d: %w", n.Line, fmt.Errorf(format, args...)))
}

// err returns everything that was wrong.
func (d *decoder) err() error { return errors.Join(d.errs...) }

// begin reads the syntax of a text, and returns the one document in it; nil for a text that says nothing.
func begin(text []byte) (*yaml.Node, error) {
	lines := &lineReader{rest: text}
	dec := yaml.NewDecoder(lines)
	var doc, second yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, lines.near(text, err)
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("line %d: a second document, where one is expected", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, lines.near(text, err)
	}
	return doc.Content[0], nil
}

// A lineReader hands out a text line by line, so that how far a parser has read tells where it failed.
type lineReader struct {
	rest []byte
	read int // lines
}

func (r *lineReader) Read(b []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	end := bytes.IndexByte(r.rest, '\n') + 1
	if end == 0 {
		end = len(r.rest)
	}
	n := copy(b, r.rest[:end])
	if n == end {
		r.read++
	}
	r.rest = r.rest[n:]
	return n, nil
}

// near says where a text is no YAML. The library names the line where the outermost thing began that it could not read to
// its end, which may be far away.
func (r *lineReader) near(text []byte, err error) error {
	_, what, ok := strings.Cut(strings.TrimPrefix(err.Error(), "yaml: "), ": ")
	if !ok {
		what = strings.TrimPrefix(err.Error(), "yaml: ")
	}
	where := fmt.Sprintf("near line %d: %s", r.read, what)
	all := strings.Split(string(text), "\n")
	for i := max(r.read-3, 0); i < r.read; i++ {
		where += fmt.Sprintf("\n%6d | %s", i+1, strings.TrimSuffix(all[i], "\r"))
	}
	return errors.New(where)
}

// Fields are what a mapping may hold, each with the function that reads its value.
type fields map[string]func(*yaml.Node)

// mapping reads a mapping.
func (d *decoder) mapping(n *yaml.Node, known fields) {
	d.pairs(n, func(key string, at, value *yaml.Node) {
		read, ok := known[key]
		if !ok {
			d.failf(at, "unknown field %q; there is %s", key, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			return
		}
		read(value)
	})
}

// pairs reads a mapping with any keys, each of which may be there once.
func (d *decoder) pairs(n *yaml.Node, each func(key string, at, value *yaml.Node)) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		d.failf(n, "expected fields and their values, found %s", found(n))
		return
	}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if before, twice := lines[key.Value]; twice {
			d.failf(key, "%q is in line %d already", key.Value, before)
			continue
		}
		lines[key.Value] = key.Line
		each(key.Value, key, value)
	}
}

// listOf returns a function that reads a list.
func (d *decoder) listOf(each func(*yaml.Node)) func(*yaml.Node) {
	return func(n *yaml.Node) {
		n = resolve(n)
		if n.Kind != yaml.SequenceNode {
			d.failf(n, "expected a list, found %s", found(n))
			return
		}
		for _, item := range n.Content {
			each(item)
		}
	}
}

// value returns a function that reads a single value.
func (d *decoder) value(to any) func(*yaml.Node) {
	return func(n *yaml.Node) {
		n = resolve(n)
		switch {
		case n.Kind != yaml.ScalarNode || n.Tag == "!!null":
			d.failf(n, "expected %s, found %s", sort(to), found(n))
		case convert(n.Value, to) != nil:
			d.failf(n, "%q is not %s", n.Value, sort(to))
		}
	}
}

// convert makes a value of a text.
func convert(text string, to any) (err error) {
	switch to := to.(type) {
	case *string:
		*to = text
	case *bool:
		*to = text == "true"
		if text != "true" && text != "false" {
			err = errors.New("neither")
		}
	case *uint16:
		var n uint64
		n, err = strconv.ParseUint(text, 10, 16)
		*to = uint16(n)
	case *time.Duration:
		*to, err = time.ParseDuration(text)
	case encoding.TextUnmarshaler:
		err = to.UnmarshalText([]byte(text))
	default:
		panic(fmt.Sprintf("cannot read a %T", to))
	}
	return err
}

// sort says what sort of value is expected.
func sort(to any) string {
	switch to.(type) {
	case *netip.Addr:
		return "an address"
	case *netip.AddrPort:
		return `an address with a port such as 10.0.0.1:80 or "[fd00::1]:80", in quotes`
	case *netip.Prefix:
		return "a range of addresses such as 10.0.0.0/8"
	case *time.Duration:
		return "a time such as 10m"
	case *uint16:
		return "a number from 0 to 65535"
	case *bool:
		return "true or false"
	}
	return "text"
}

// values returns a function that reads a list of values.
func values[T any](d *decoder, to *[]T) func(*yaml.Node) {
	return d.listOf(func(n *yaml.Node) {
		var v T
		d.value(&v)(n)
		*to = append(*to, v)
	})
}

// oneOf returns a function that reads a word which stands for one of some values: what it calls itself, in lower case
// and with hyphens.
func oneOf[T fmt.Stringer](d *decoder, to *T, all ...T) func(*yaml.Node) {
	return func(n *yaml.Node) {
		var word string
		d.value(&word)(n)
		var words []string
		for _, v := range all {
			words = append(words, strings.ReplaceAll(strings.ToLower(v.String()), " ", "-"))
		}
		if i := slices.Index(words, word); i >= 0 {
			*to = all[i]
			return
		}
		d.failf(n, "%q is none of %s", word, strings.Join(words, ", "))
	}
}

// resolve returns what an alias stands for.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// found says what stands where something else is expected.
func found(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	}
	return fmt.Sprintf("%q", n.Value)
}
