package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemory(t *testing.T) {
	m := memory{t.TempDir()}
	_, _, ok, err := m.state()
	require.NoError(t, err)
	require.False(t, ok)

	text, err := os.ReadFile("services.yaml")
	require.NoError(t, err)
	doc, err := parse(text)
	require.NoError(t, err)
	require.NoError(t, m.keep(doc.state))
	got, since, ok, err := m.state()
	require.NoError(t, err)
	require.True(t, ok)
	require.WithinDuration(t, time.Now(), since, patience)
	require.Equal(t, doc.state, got, "node ports without an address included")

	require.NoError(t, os.WriteFile(m.path(lastGood), []byte("half"), 0o600))
	_, _, ok, err = m.state()
	require.Error(t, err)
	require.False(t, ok)
	require.NoError(t, m.forget())
	require.NoError(t, m.forget())
	_, _, ok, err = m.state()
	require.NoError(t, err)
	require.False(t, ok)
}
