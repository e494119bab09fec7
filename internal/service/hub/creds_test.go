package hub

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// pair is a new pair of keys, with the public one as text.
func pair(t *testing.T, create func() (nkeys.KeyPair, error)) (kp nkeys.KeyPair, public string) {
	t.Helper()
	kp, err := create()
	if err == nil {
		public, err = kp.PublicKey()
	}
	if err != nil {
		t.Fatal(err)
	}
	return kp, public
}

// TestCreds: a cluster whose users have credentials is opened with them, and not
// without, nor with those of another account; what is refused tells no secret.
func TestCreds(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	operator, operatorKey := pair(t, nkeys.CreateOperator)
	claims := jwt.NewOperatorClaims(operatorKey)
	resolver := &server.MemAccResolver{}
	user := func(jetstream bool) (file, seed string) {
		account, accountKey := pair(t, nkeys.CreateAccount)
		a := jwt.NewAccountClaims(accountKey)
		if jetstream {
			a.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
		}
		text, err := a.Encode(operator)
		must(err)
		must(resolver.Store(accountKey, text))
		person, personKey := pair(t, nkeys.CreateUser)
		text, err = jwt.NewUserClaims(personKey).Encode(account)
		must(err)
		raw, err := person.Seed()
		must(err)
		whole, err := jwt.FormatUserConfig(text, raw)
		must(err)
		file = filepath.Join(t.TempDir(), "user.creds")
		must(os.WriteFile(file, whole, 0o600))
		return file, string(raw)
	}
	_, system := pair(t, nkeys.CreateAccount)
	text, err := jwt.NewAccountClaims(system).Encode(operator)
	must(err)
	must(resolver.Store(system, text))
	good, _ := user(true)
	none, seed := user(false)
	s, err := server.NewServer(&server.Options{ServerName: "creds", Host: "127.0.0.1", Port: -1, StoreDir: t.TempDir(),
		JetStream: true, NoSigs: true,
		TrustedOperators: []*jwt.OperatorClaims{claims}, AccountResolver: resolver, SystemAccount: system})
	must(err)
	s.SetLoggerV2(serverLog{log: slog.New(slog.NewTextHandler(t.Output(), nil))}, false, false, false)
	go s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	o := Options{URI: s.ClientURL(), Creds: good, Log: slog.New(slog.DiscardHandler)}
	h, err := Open(t.Context(), o)
	must(err)
	defer h.Close()
	must(h.Jobs.Create(t.Context(), definition("shop")))
	for what, file := range map[string]string{"none": "", "those of an account without JetStream": none} {
		o.Creds = file
		refused, err := Open(t.Context(), o)
		if err == nil {
			refused.Close()
			t.Errorf("opened with %s", what)
		} else if strings.Contains(err.Error(), seed) {
			t.Errorf("the secret is told: %v", err)
		}
	}
}
