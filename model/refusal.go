package model

// LeaveOut adds services that cannot be programmed to those that the next Resolve shall refuse, refused, and returns
// them. A service that was refused already is one of which the kernel does not even take what it was before: if all is
// being programmed, that is forgotten too, so that the others are not held up; else its error is returned.
func (r *Resolver) LeaveOut(refused, more map[ServiceName]error, all bool) (map[ServiceName]error, error) {
	if refused == nil {
		refused = make(map[ServiceName]error, len(more))
	}
	for name, cause := range more {
		switch {
		case refused[name] == nil:
			refused[name] = cause
		case all && r.forms[name] != nil:
			r.Forget(name)
		default:
			return nil, cause
		}
	}
	return refused, nil
}

// Forget forgets the committed form of a service, because the kernel does not hold it any more and will not take it.
// Those who wait for its frontends get them when one of them changes next.
func (r *Resolver) Forget(name ServiceName) {
	form := r.forms[name]
	if form == nil {
		return
	}
	delete(r.forms, name)
	for _, f := range form.Frontends {
		delete(r.owners, form.Key(f))
	}
}
