package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headgate/headgate/model"
)

// A report is how a proxy is doing: what its status prints.
type report struct {
	Backend string
	// Unhealthy says why; empty if it is healthy.
	Unhealthy string `json:",omitempty"`
	File      fileReport
	// LastSync is when something was last programmed, LastCheck when the kernel was last found to hold it.
	LastSync, LastCheck time.Time
	// Drifts counts how often it was not, Draining what is there for open connections alone.
	Drifts   uint64
	Draining int
	Services []serviceReport
}

// A fileReport is what came of the file.
type fileReport struct {
	Path string
	// Taken is when it was last good; the zero time is never. Err is why it is not now.
	Taken time.Time
	Err   string `json:",omitempty"`
	// Faults are the services in it that make no sense, which stay as they were before.
	Faults map[model.ServiceName]string `json:",omitempty"`
}

// A serviceReport is how one service is doing.
type serviceReport struct {
	Name                 model.ServiceName
	State                string
	Since                time.Time
	Frontends, Endpoints []string
	Errors               []string `json:",omitempty"`
}

// report says how the proxy is doing now.
func (p *proxy) report(now time.Time) report {
	o := p.syncer.Overview()
	p.mu.Lock()
	defer p.mu.Unlock()
	r := report{Backend: o.Backend, File: p.file, LastSync: o.LastSync, LastCheck: o.LastCheck, Drifts: o.Drifts, Draining: o.Draining}
	if err := unhealthy(o, now, p.cfg.within); err != nil {
		r.Unhealthy = err.Error()
	}
	names := map[model.ServiceName]struct{}{}
	for name := range p.want.Services {
		names[name] = struct{}{}
	}
	for name := range p.file.Faults {
		names[name] = struct{}{}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		st := p.syncer.Status(name)
		s := serviceReport{Name: name, State: st.Phase.String(), Since: st.Since}
		if fault, ok := p.file.Faults[name]; ok {
			s.State = "faulty"
			s.Errors = append(s.Errors, strings.Split(fault, "\n")...)
		}
		if st.Err != nil {
			s.Errors = append(s.Errors, strings.Split(st.Err.Error(), "\n")...)
		}
		s.Frontends = frontends(p.want.Services[name])
		s.Endpoints = endpoints(p.want.Endpoints[name], st.Drains)
		r.Services = append(r.Services, s)
	}
	return r
}

// unhealthy returns why a node should get no new traffic: the kernel does not hold what is wanted, or nobody has made
// sure of it for too long. That a file is no good is no reason: what it said before is in force.
func unhealthy(o model.Overview, now time.Time, within time.Duration) error {
	seen := o.LastSync
	if o.LastCheck.After(seen) {
		seen = o.LastCheck
	}
	because := ""
	if o.Err != nil {
		because = ": " + o.Err.Error()
	}
	switch behind, unseen := o.Behind(now), now.Sub(seen); {
	case !o.Ready:
		return fmt.Errorf("nothing is programmed: there was no good file yet")
	case !o.Synced:
		return fmt.Errorf("nothing is programmed yet%s", because)
	case !o.Running:
		return fmt.Errorf("stopped")
	case behind > within:
		return fmt.Errorf("a change has been waiting for %v%s", behind.Round(time.Second), because)
	case unseen > within:
		return fmt.Errorf("the kernel was last seen in step %v ago%s", unseen.Round(time.Second), because)
	}
	return nil
}

func frontends(s model.Service) []string {
	var all []string
	for _, f := range s.Frontends {
		text := f.Addr.String()
		switch {
		case f.Kind == model.NodePort && f.Addr.Addr().IsValid():
			text = fmt.Sprintf("%v node port %d", f.Family(), f.Addr.Port())
		case f.Kind == model.NodePort:
			text = fmt.Sprintf("node port %d", f.Addr.Port())
		case f.Kind == model.External:
			text += " external"
		}
		if f.Restricted() {
			text += " restricted"
		}
		all = append(all, text+" "+s.Protocol.String())
	}
	return all
}

func endpoints(eps []model.Endpoint, drains []model.Drain) []string {
	var all []string
	listed := map[string]bool{}
	for _, e := range eps {
		text := e.Addr.String() + " " + e.State.String()
		if e.Weight > 1 {
			text += fmt.Sprintf(" weight %d", e.Weight)
		}
		if e.Local {
			text += " local"
		}
		listed[e.Addr.String()] = true
		all = append(all, text)
	}
	for _, d := range drains {
		if addr := d.Endpoint.String(); d.Endpoint.IsValid() && !listed[addr] {
			all = append(all, fmt.Sprintf("%s gone, %d connections", addr, d.Connections))
		}
	}
	return all
}

// write prints the report for a person.
func (r report) write(w io.Writer, now time.Time) {
	ago := func(t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return now.Sub(t).Round(time.Second).String() + " ago"
	}
	health := "healthy"
	if r.Unhealthy != "" {
		health = "NOT HEALTHY: " + r.Unhealthy
	}
	fmt.Fprintf(w, "%s: %s\n", r.Backend, health)
	fmt.Fprintf(w, "  programmed %s, checked %s, mended %d times what others had changed\n", ago(r.LastSync), ago(r.LastCheck), r.Drifts)
	fmt.Fprintf(w, "%s: last good %s\n", r.File.Path, ago(r.File.Taken))
	if r.File.Err != "" {
		fmt.Fprintf(w, "  NO GOOD NOW: %s\n", strings.ReplaceAll(r.File.Err, "\n", "\n  "))
	}
	fmt.Fprintln(w)
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tSTATE\tFRONTENDS\tENDPOINTS")
	notes := map[int][]string{} // what is to be told below a row
	row := 0
	for _, s := range r.Services {
		name, state := string(s.Name), s.State
		for i := range max(1, len(s.Frontends), len(s.Endpoints)) {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, state, at(s.Frontends, i), at(s.Endpoints, i))
			name, state = "", ""
			row++
		}
		notes[row] = s.Errors
	}
	t.Flush()
	row = 0
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
		for _, note := range notes[row] {
			fmt.Fprintf(w, "  %s\n", note)
		}
		row++
	}
}

func at(all []string, i int) string {
	if i < len(all) {
		return all[i]
	}
	return ""
}
