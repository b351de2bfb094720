// Watches an account, a program and signatures with solana-go, unmodified. WATCH is JSON: the address `ws`, the account, the
// program, the signatures, and the account's balances. Once all has been told, one line of JSON says what.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/gagliardetto/solana-go"
	"github.com/gagliardetto/solana-go/rpc"
	"github.com/gagliardetto/solana-go/rpc/ws"
)

type watch struct {
	WS         string
	Account    string
	Program    string
	Signatures []string
	Balances   []uint64
}

type seen struct {
	Account    []uint64       `json:"account"`
	Program    []uint64       `json:"program"`
	Signatures map[string]any `json:"signatures"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	var of watch
	check(json.Unmarshal([]byte(os.Getenv("WATCH")), &of))
	ctx := context.Background()
	client, err := ws.Connect(ctx, of.WS)
	check(err)
	account := solana.MustPublicKeyFromBase58(of.Account)
	accounts, err := client.AccountSubscribe(account, rpc.CommitmentConfirmed)
	check(err)
	programs, err := client.ProgramSubscribe(solana.MustPublicKeyFromBase58(of.Program), rpc.CommitmentConfirmed)
	check(err)
	signatures := map[string]*ws.SignatureSubscription{}
	for _, signature := range of.Signatures {
		signatures[signature], err = client.SignatureSubscribe(solana.MustSignatureFromBase58(signature), rpc.CommitmentConfirmed)
		check(err)
	}
	told, last := seen{Signatures: map[string]any{}}, of.Balances[len(of.Balances)-1]
	for len(told.Account) == 0 || told.Account[len(told.Account)-1] != last {
		result, err := accounts.Recv(ctx)
		check(err)
		told.Account = append(told.Account, result.Value.Lamports)
	}
	for len(told.Program) == 0 || told.Program[len(told.Program)-1] != last {
		result, err := programs.Recv(ctx)
		check(err)
		if result.Value.Pubkey == account {
			told.Program = append(told.Program, result.Value.Account.Lamports)
		}
	}
	for signature, subscription := range signatures {
		result, err := subscription.Recv(ctx)
		check(err)
		told.Signatures[signature] = result.Value.Err
	}
	text, err := json.Marshal(told)
	check(err)
	fmt.Println(string(text))
}
