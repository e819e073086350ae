package iptables

import (
	"errors"
	"maps"
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
	waiting := map[model.ServiceName]bool{}
	for _, name := range w.candidates {
		if w.refused[name] == nil {
			suspects = append(suspects, name)
			waiting[name] = true
		}
	}
	if again := w.attempt(w.refusing(suspects, err)); again != nil {
		if refusalOf(again) == nil {
			return again
		}
		name, ok := w.blamed(again)
		if !ok || !w.all || w.resolver.Form(name) == nil {
			return err // it is not for any of them
		}
		w.resolver.Forget(name) // the kernel does not even take what it was before
		w.refused[name] = again
		return w.isolate(again)
	}
	if err := w.admit(suspects, waiting, err); err != nil {
		return err
	}
	return w.attempt(w.refused)
}

// admit programs as many of the suspects as the kernel accepts, halving them where it does not, and refuses the others.
// Suspects not admitted yet are waiting.
func (w *work) admit(suspects []model.ServiceName, waiting map[model.ServiceName]bool, cause error) error {
	for _, name := range suspects {
		delete(waiting, name)
	}
	err := w.attempt(w.refusing(slices.Collect(maps.Keys(waiting)), cause))
	switch {
	case err == nil:
		return nil
	case refusalOf(err) == nil:
		return err
	case len(suspects) == 1:
		w.refused[suspects[0]] = err
		return nil
	}
	for _, name := range suspects {
		waiting[name] = true
	}
	half := len(suspects) / 2
	if err := w.admit(suspects[:half], waiting, err); err != nil {
		return err
	}
	return w.admit(suspects[half:], waiting, err)
}

// refusing returns the refused services and some more.
func (w *work) refusing(more []model.ServiceName, cause error) map[model.ServiceName]error {
	out := maps.Clone(w.refused)
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
