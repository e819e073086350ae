package modeltest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// decodeVectors reads vectors.json. What it does not know is an error: a field that nobody reads tests nothing.
func decodeVectors(b []byte) (*vectorFile, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	f := new(vectorFile)
	if err := d.Decode(f); err != nil {
		return nil, fmt.Errorf("vectors: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("vectors: something follows the end")
	}
	return f, f.check()
}

// check finds what would make a vector test nothing, or the wrong thing.
func (f *vectorFile) check() error {
	ids := map[string]bool{}
	var errs []error
	head := func(h vectorHead, empty bool) {
		if h.ID == "" || ids[h.ID] || empty {
			errs = append(errs, fmt.Errorf("vectors: %q: without content, or its id is missing or taken", h.ID))
		}
		ids[h.ID] = true
	}
	packets := func(h vectorHead, body stepBody) {
		for _, p := range body.Packets {
			if err := p.check(h.Family); err != nil {
				errs = append(errs, fmt.Errorf("vectors: %q, packet %q: %w", h.ID, p.Name, err))
			}
		}
	}
	for _, v := range f.Vectors {
		head(v.vectorHead, len(v.Packets) == 0)
		packets(v.vectorHead, v.stepBody)
	}
	for _, s := range slices.Concat(f.Sequences, f.Affinity) {
		head(s.vectorHead, len(s.Steps) == 0)
		for _, step := range s.Steps {
			packets(s.vectorHead, step.stepBody)
		}
	}
	for _, c := range f.ConntrackCleanup {
		head(c.vectorHead, len(c.Entries) == 0)
	}
	for _, c := range f.Termination {
		head(c.vectorHead, false)
	}
	return errors.Join(errs...)
}

func (p packetJSON) check(family familyJSON) error {
	v6 := family == "ipv6"
	if p.From.IP.Is6() != v6 || p.To.IP.Is6() != v6 {
		return errors.New("not of the family under test")
	}
	if (p.To.Port == 0) != (p.To.Proto == "icmp") || p.To.Proto == "" || p.From.Kind == "" {
		return errors.New("incomplete")
	}
	if p.Loopback != p.To.IP.IsLoopback() {
		return errors.New("loopback and the address contradict each other")
	}
	for _, e := range p.answers() {
		balanced := e.Verdict == verdictJSON(Translated)
		if e.Verdict == "" || balanced == (len(e.Endpoints) == 0) && e.Verdict != inUserspace {
			return fmt.Errorf("verdict %q with endpoints %v", e.Verdict, e.Endpoints)
		}
		if balanced == (e.Masq == nil && e.MasqByEndpoint == nil) {
			return fmt.Errorf("verdict %q, and whether it is masqueraded, contradict each other", e.Verdict)
		}
	}
	return nil
}

// answers are all expectations of a packet.
func (p packetJSON) answers() []expectJSON {
	all := []expectJSON{p.Expect}
	for _, e := range p.ByBackend {
		all = append(all, e)
	}
	return all
}
