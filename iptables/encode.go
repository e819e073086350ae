package iptables

import (
	"strconv"

	"github.com/headgate/headgate/model"
)

// A script is the standard input of one iptables-restore --noflush: one or more transactions.
type script struct {
	text         []byte
	transactions int
	// owners says, by line, for which service a rule is there. Lines count from 1, as in the tool's errors.
	owners []model.ServiceName
}

// newScript writes stages as iptables-restore reads them. A chain that is declared is emptied first, so each chain is
// written whole; those of others are not named but in our jumps.
func newScript(stages []stage) *script {
	bytes, lines := scriptSize(stages)
	s := &script{text: make([]byte, 0, bytes), owners: make([]model.ServiceName, 0, lines)}
	for i := range stages {
		s.stage(&stages[i])
	}
	return s
}

// scriptSize returns about how long a script will be; jumps are few.
func scriptSize(stages []stage) (bytes, lines int) {
	for i := range stages {
		bytes += 1024
		lines += 16
		for _, c := range stages[i].write {
			bytes += len(c.name) + len(": - [0:0]\n")
			lines += 1 + len(c.rules)
			for _, r := range c.rules {
				bytes += len("-A  \n") + len(c.name) + len(r.text)
			}
		}
		for _, name := range stages[i].gone {
			bytes += 2*len(name) + len(": - [0:0]\n-X \n")
			lines += 2
		}
	}
	return bytes, lines
}

func (s *script) stage(st *stage) {
	if st.empty() {
		return
	}
	s.transactions++
	s.line("", "*", st.table.String())
	for _, c := range st.write {
		s.line("", ":", c.name, " - [0:0]")
	}
	for _, name := range st.gone {
		s.line("", ":", name, " - [0:0]")
	}
	for _, c := range st.write {
		for _, r := range c.rules {
			s.line(r.owner, "-A ", c.name, " ", r.text)
		}
	}
	for _, j := range st.jumps {
		if j.last {
			s.line("", "-A ", j.from, " ", j.text)
		} else {
			s.line("", "-I ", j.from, " ", strconv.Itoa(1), " ", j.text)
		}
	}
	for _, j := range st.unjumps {
		s.line("", "-D ", j.from, " ", j.text)
	}
	for _, name := range st.gone {
		s.line("", "-X ", name)
	}
	s.line("", "COMMIT")
}

func (s *script) line(owner model.ServiceName, parts ...string) {
	for _, p := range parts {
		s.text = append(s.text, p...)
	}
	s.text = append(s.text, '\n')
	s.owners = append(s.owners, owner)
}

// owner returns the service for which the given line is there, if it is for one.
func (s *script) owner(line int) (model.ServiceName, bool) {
	if line < 1 || line > len(s.owners) {
		return "", false
	}
	return s.owners[line-1], s.owners[line-1] != ""
}
