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
	s := &script{text: make([]byte, 0, 64+scriptSize(stages))}
	for i := range stages {
		s.stage(&stages[i])
	}
	return s
}

func scriptSize(stages []stage) int {
	n := 0
	for i := range stages {
		for _, c := range stages[i].write {
			n += len(c.name) + len(": - [0:0]\n")
			for _, r := range c.rules {
				n += len("-A  \n") + len(c.name) + len(r.text)
			}
		}
		for _, name := range stages[i].gone {
			n += 2*len(name) + len(": - [0:0]\n-X \n")
		}
	}
	return n
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
