package modeltest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSelection(t *testing.T) { RunSelection(t) }

func TestVectorsAreReadStrictly(t *testing.T) {
	_, err := decodeVectors(vectorsJSON)
	require.NoError(t, err)
	var compact bytes.Buffer
	require.NoError(t, json.Compact(&compact, vectorsJSON))
	for name, c := range map[string]struct{ old, new, err string }{
		"an unknown field":         {`"masquerade_all"`, `"masquerade_some"`, "unknown field"},
		"an unknown verdict":       {`"verdict":"drop"`, `"verdict":"lose"`, `"lose" is none of`},
		"an unknown kind":          {`"kind":"pod"`, `"kind":"pot"`, `"pot" is none of`},
		"another kind of address":  {`"ip":"172.20.0.10"`, `"ip":"fd20::1"`, "not of the family"},
		"no endpoints":             {`"endpoints":["10.128.0.11:8080"]`, `"endpoints":[]`, `verdict "dnat" with endpoints []`},
		"nothing about the source": {`,"masq":false`, ``, "contradict each other"},
		"an id twice":              {`"id":"lb-open"`, `"id":"lb-source-ranges"`, "missing or taken"},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, bytes.Contains(compact.Bytes(), []byte(c.old)), "the file has no %s", c.old)
			_, err := decodeVectors(bytes.Replace(compact.Bytes(), []byte(c.old), []byte(c.new), 1))
			require.ErrorContains(t, err, c.err)
		})
	}
	_, err = decodeVectors(append(bytes.Clone(vectorsJSON), '{'))
	require.ErrorContains(t, err, "follows the end")
}
