package peers

// settle shows every packet that comes out of the node until nothing more can come.
func (w *World) settle(see func(Sighting) error) error {
	// What one packet causes on loopback queues behind the frame that was sent after it: a refusal of a question, the
	// answer to an answer. So several frames have to come through with nothing else.
	const rounds = 3
	for quiet := 0; quiet < rounds; quiet++ {
		seen, err := w.drain(see)
		if err != nil {
			return err
		}
		if seen {
			quiet = -1
			continue
		}
		if err := w.local.flush(); err != nil {
			return err
		}
	}
	_, err := w.drain(see)
	return err
}

// drain shows every packet that is there to be read, and reports whether there was any.
func (w *World) drain(see func(Sighting) error) (seen bool, err error) {
	for _, l := range w.links {
		for {
			r, ok, err := l.receive()
			if err != nil {
				return seen, err
			}
			if !ok {
				break
			}
			seen = true
			if err := see(Sighting{link: l.name, packet: r.decode(), broken: !r.intact()}); err != nil {
				return seen, err
			}
		}
	}
	for {
		r, ok, err := w.local.receive()
		if err != nil || !ok {
			return seen, err
		}
		seen = true
		// Checksums of what stays on the machine are not filled in as a rule.
		if err := see(Sighting{packet: r.decode()}); err != nil {
			return seen, err
		}
	}
}
