package iptables

import (
	"errors"
	"slices"

	"github.com/headgate/headgate/model"
)

// isolate finds the services that the kernel refuses, and programs all others. A first guess is the service whose rule
// the program complained of; some versions name another line, so it counts only if the rest is accepted without it.
func (w *work) isolate(err error) error {
	if name, ok := w.blamed(err); ok {
		guess := w.refusing([]model.ServiceName{name}, err)
		if again := w.attempt(guess); refusalOf(again) == nil {
			return again
		}
	}
	var suspects []model.ServiceName
	for _, name := range w.candidates {
		if w.refused[name] == nil {
			suspects = append(suspects, name)
		}
	}
	if w.attempt(w.refusing(suspects, err)) != nil {
		return err // it is not for any of them
	}
	if err := w.admit(suspects, suspects, err); err != nil {
		return err
	}
	return w.attempt(w.refused)
}

// admit programs as many of the suspects as the kernel accepts, halving them where it does not, and refuses the others.
// Those in out are not programmed yet.
func (w *work) admit(suspects, out []model.ServiceName, cause error) error {
	rest := slices.DeleteFunc(slices.Clone(out), func(n model.ServiceName) bool { return slices.Contains(suspects, n) })
	err := w.attempt(w.refusing(rest, cause))
	switch {
	case err == nil:
		return nil
	case refusalOf(err) == nil:
		return err
	case len(suspects) == 1:
		w.refused[suspects[0]] = err
		return nil
	}
	half := len(suspects) / 2
	if err := w.admit(suspects[:half], out, err); err != nil {
		return err
	}
	accepted := func(n model.ServiceName) bool { return slices.Contains(suspects[:half], n) }
	return w.admit(suspects[half:], slices.DeleteFunc(slices.Clone(out), accepted), err)
}

// refusing returns the refused services and some more.
func (w *work) refusing(more []model.ServiceName, cause error) map[model.ServiceName]error {
	out := map[model.ServiceName]error{}
	for name, err := range w.refused {
		out[name] = err
	}
	for _, name := range more {
		out[name] = cause
	}
	return out
}

// blamed returns the service that an error complains of.
func (w *work) blamed(err error) (model.ServiceName, bool) {
	var failed *scriptError
	if !errors.As(err, &failed) {
		return "", false
	}
	name, ok := failed.script.owner(refusalOf(err).line)
	return name, ok && slices.Contains(w.candidates, name)
}
